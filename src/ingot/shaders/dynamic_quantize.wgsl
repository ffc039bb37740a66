// dynamic_quantize.wgsl: codes of u8 for all elements of x, whose range, with 0 in it, is that of the codes; one workgroup
// makes them. NaN does not count.

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
