// integer_conv.wgsl: 2-D convolution of 8-bit integers with adjacent channels, and products of matrices as
// convolutions. A lane computes one element. The kernel defines `weight_of`: a weight of a channel's filter.

// In panels of 32 channels of a group, four elements of a channel adjacent, k over kernel row, kernel column and
// channel; each row is zero-padded to a multiple of 4.
fn packed_weight(part: i32, channel: i32, ky: i32, kx: i32, c: i32) -> i32 {
  let channels = arg_channels() / arg_groups();
  let each = arg_out_channels() / arg_groups();
  let row = (channels * arg_kernel_w() + 3) / 4 * 4;
  let words = row * arg_kernel_h() * 8;
  let i = ky * row + kx * channels + c;
  let own = channel - part * each;
  let word = int_weight((part * ((each + 31) / 32) + own / 32) * words + i / 4 * 32 + own % 32);
  return extractBits(word, u32(i % 4) * 8u, 8u);
}

// Four rows of the kernel interleaved, for each kernel column and channel; channels are padded to a multiple of 16.
fn depthwise_weight(part: i32, channel: i32, ky: i32, kx: i32, c: i32) -> i32 {
  let channels = (arg_channels() + 15) / 16 * 16;
  return int_weight(((ky / 4 * arg_kernel_w() + kx) * channels + channel) * 4 + ky % 4);
}

fn work(group: i32, lane: i32) {
  let element = group * LANES + lane;
  let channel = element % arg_out_channels();
  let pixel = element / arg_out_channels();
  let column = pixel % arg_out_width();
  let line = pixel / arg_out_width() % arg_out_height();
  let image = pixel / arg_out_width() / arg_out_height();
  if (image >= arg_batch()) { return; }
  let channels = arg_channels() / arg_groups();
  let part = channel / (arg_out_channels() / arg_groups());
  let zero = int_x_zero(image * arg_x_zero_step());
  var weight_zero = 0;
  if (has_weight_zero) { weight_zero = int_weight_zero(channel * arg_weight_zero_step()) - arg_weight_flip(); }
  var sum = 0;
  for (var ky = 0; ky < arg_kernel_h(); ky++) {
    let y = line * arg_stride_h() - arg_pad_top() + ky * arg_dilation_h();
    for (var kx = 0; kx < arg_kernel_w(); kx++) {
      let x = column * arg_stride_w() - arg_pad_left() + kx * arg_dilation_w();
      if (x < 0 || x >= arg_width() || y < 0 || y >= arg_height()) { continue; }
      let source = image * arg_x_strides(0) + y * arg_x_strides(1) + x * arg_x_strides(2) + part * channels;
      for (var c = 0; c < channels; c++) {
        sum += (int_x(source + c) - zero) * (weight_of(part, channel, ky, kx, c) - weight_zero);
      }
    }
  }
  if (has_bias) { sum += int_bias(channel); }
  var step = 1.0f;
  if (has_steps) { step = at_steps(image); }
  let out = image * arg_out_strides(0) + line * arg_out_strides(1) + column * arg_out_strides(2);
  let residual = image * arg_residual_strides(0) + line * arg_residual_strides(1) + column * arg_residual_strides(2);
  leave(out + channel, sum, scaled_sum(sum, step, channel, residual + channel));
}
