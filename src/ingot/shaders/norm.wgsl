// norm.wgsl: layer_norm, where it is centred, and rms_norm over rows of adjacent elements; a workgroup computes one
// row. The centre is the rounded mean; its rounding error is subtracted afterwards.

fn work(group: i32, lane: i32) {
  if (group >= arg_rows()) { return; }
  let x = group * arg_x_stride();
  let out = group * arg_out_stride();
  let count = f32(arg_cols());
  var centre = 0.0f;
  var missed = 0.0f;
  if (is_centred) {
    var sum = 0.0f;
    for (var i = lane; i < arg_cols(); i += LANES) { sum += at_x(x + i); }
    centre = group_sum(sum, lane) / count;
    sum = 0.0f;
    for (var i = lane; i < arg_cols(); i += LANES) { sum += at_x(x + i) - centre; }
    missed = group_sum(sum, lane) / count;
  }
  var squares = 0.0f;
  for (var i = lane; i < arg_cols(); i += LANES) {
    let rest = at_x(x + i) - centre;
    squares += rest * rest;
  }
  let variance = max(0.0f, group_sum(squares, lane) / count - missed * missed);
  let scale = 1.0f / sqrt(variance + arg_eps());
  for (var i = lane; i < arg_cols(); i += LANES) {
    var y = ((at_x(x + i) - centre) - missed) * scale;
    if (has_weight) { y *= at_weight(i); }
    if (has_bias) { y += at_bias(i); }
    set_out(out + i, y);
  }
}
