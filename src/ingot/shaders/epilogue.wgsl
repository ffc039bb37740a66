// epilogue.wgsl: the epilogue of a product's scaled sum: activation(sum + bias) + residual, or with residual_first the
// activation of all.

fn epilogue(sum: f32, column: i32, offset: i32) -> f32 {
  var y = sum;
  if (has_bias) { y += at_bias(column); }
  if (arg_residual_first() == 0) { y = activate(y); }
  if (has_residual) { y += at_residual(offset); }
  if (arg_residual_first() != 0) { y = activate(y); }
  return y;
}

// The gated epilogue of the sums of both halves.
fn gated(first: f32, second: f32, column: i32) -> f32 {
  var x = arg_alpha() * first;
  var y = arg_alpha() * second;
  if (has_bias) {
    x += at_bias(column);
    y += at_bias(arg_n() + column);
  }
  return select(x * activate(y), activate(x) * y, arg_gate() == 1);
}
