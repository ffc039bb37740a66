// integer.wgsl: the epilogue of exact sums of products of 8-bit integers, which are 32-bit integers. The kernel defines
// `leave`, `least`, the smallest quantized value, and `residual_of`.

fn code_of_sum(y: f32) -> i32 { return code_of_float(y / arg_out_scale(), arg_out_zero(), least, least + 255.0f); }

// activation(sum * scale * step + shift) + residual, or the activation of all. offset: the offset of the residual.
fn scaled_sum(sum: i32, step: f32, channel: i32, offset: i32) -> f32 {
  var y = f32(sum) * at_scale(channel * arg_scale_step()) * step;
  if (has_shift) { y += at_shift(channel); }
  if (arg_middle_scale() != 0.0f) { y = round(clamp(y, arg_middle_low(), arg_middle_high())) * arg_middle_scale(); }
  if (has_residual && arg_residual_first() != 0) { y += residual_of(offset); }
  y = activate(y);
  if (has_residual && arg_residual_first() == 0) { y += residual_of(offset); }
  return y;
}

fn float_residual(offset: i32) -> f32 { return at_residual(offset); }

fn quantized_residual(offset: i32) -> f32 { return (f32(int_residual(offset)) - arg_residual_zero()) * arg_residual_scale(); }
