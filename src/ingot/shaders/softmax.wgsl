// softmax.wgsl: e^(x - max) divided by its sum over rows of adjacent elements; a workgroup computes one row. A row with
// NaN, or with no element above -inf, gives NaN throughout.

fn work(group: i32, lane: i32) {
  if (group >= arg_rows()) { return; }
  let x = group * arg_x_stride();
  let out = group * arg_out_stride();
  var most = -infinity();
  for (var i = lane; i < arg_cols(); i += LANES) { most = max(most, at_x(x + i)); }
  most = group_max(most, lane);
  var sum = 0.0f;
  for (var i = lane; i < arg_cols(); i += LANES) { sum += exp_f32(at_x(x + i) - most); }
  let total = group_sum(sum, lane);
  for (var i = lane; i < arg_cols(); i += LANES) { set_out(out + i, share(at_x(x + i) - most, total)); }
}
