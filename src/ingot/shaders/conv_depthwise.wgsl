// conv_depthwise.wgsl: depthwise 2-D convolution with the filter as [kernel row][kernel column][channels]; a lane
// computes one element, and adjacent lanes adjacent channels.

fn work(group: i32, lane: i32) {
  let element = group * LANES + lane;
  let channel = element % arg_channels();
  let pixel = element / arg_channels();
  let column = pixel % arg_out_width();
  let line = pixel / arg_out_width() % arg_out_height();
  let image = pixel / arg_out_width() / arg_out_height();
  if (image >= arg_batch()) { return; }
  var sum = 0.0f;
  for (var ky = 0; ky < arg_kernel_h(); ky++) {
    let y = line * arg_stride_h() - arg_pad_top() + ky * arg_dilation_h();
    for (var kx = 0; kx < arg_kernel_w(); kx++) {
      let x = column * arg_stride_w() - arg_pad_left() + kx * arg_dilation_w();
      if (x < 0 || x >= arg_width() || y < 0 || y >= arg_height()) { continue; }
      let source = image * arg_x_strides(0) + y * arg_x_strides(1) + x * arg_x_strides(2) + channel;
      sum += at_x(source) * at_weight((ky * arg_kernel_w() + kx) * arg_channels() + channel);
    }
  }
  let out = image * arg_out_strides(0) + line * arg_out_strides(1) + column * arg_out_strides(2) + channel;
  let residual = image * arg_residual_strides(0) + line * arg_residual_strides(1) + column * arg_residual_strides(2);
  set_out(out, epilogue(sum, channel, residual + channel));
}
