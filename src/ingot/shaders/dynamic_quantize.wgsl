// dynamic_quantize.wgsl: quantize all elements of x to u8 by their range, which includes 0; one workgroup does it. NaN
// is not part of the range.

fn counted(x: f32) -> f32 { return select(x, 0.0f, is_nan(x)); }

fn work(group: i32, lane: i32) {
  var low = 0.0f;
  var high = 0.0f;
  for (var i = lane; i < arg_count(); i += LANES) {
    low = min(low, counted(at_x(i)));
    high = max(high, counted(at_x(i)));
  }
  low = -group_max(-low, lane);
  high = group_max(high, lane);
  let step = (high - low) / 255.0f;
  let scale = select(step, 1.0f, step == 0.0f);
  let zero = code_of_float((0.0f - low) / scale, 0.0f, 0.0f, 255.0f);
  for (var i = lane; i < arg_count(); i += LANES) {
    set_int_out(i, code_of_float(at_x(i) / scale, f32(zero), 0.0f, 255.0f));
  }
  if (lane == 0) {
    set_scale(0, scale);
    set_int_zero(0, zero);
  }
}
