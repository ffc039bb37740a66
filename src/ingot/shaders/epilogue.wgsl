// epilogue.wgsl: what a product makes of a sum that is scaled: activation(sum + bias) + residual, or with
// residual_first the activation of all.

fn epilogue(sum: f32, column: i32, place: i32) -> f32 {
  var y = sum;
  if (has_bias) { y += at_bias(column); }
  if (arg_residual_first() == 0) { y = activate(y); }
  if (has_residual) { y += at_residual(place); }
  if (arg_residual_first() != 0) { y = activate(y); }
  return y;
}
