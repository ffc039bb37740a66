// conv.wgsl: 2-D convolution with an activation as its filter; images and filter are row-major, channel by channel. A
// lane computes one element.

fn work(group: i32, lane: i32) {
  let element = group * LANES + lane;
  let column = element % arg_out_width();
  let line = element / arg_out_width() % arg_out_height();
  let channel = element / arg_out_width() / arg_out_height() % arg_out_channels();
  let image = element / arg_out_width() / arg_out_height() / arg_out_channels();
  if (image >= arg_batch()) { return; }
  let channels = arg_channels() / arg_groups();
  let first = channel / (arg_out_channels() / arg_groups()) * channels;
  var total = 0.0f;
  for (var c = 0; c < channels; c++) {
    var sum = 0.0f;
    for (var ky = 0; ky < arg_kernel_h(); ky++) {
      let y = line * arg_stride_h() - arg_pad_top() + ky * arg_dilation_h();
      for (var kx = 0; kx < arg_kernel_w(); kx++) {
        let x = column * arg_stride_w() - arg_pad_left() + kx * arg_dilation_w();
        if (x < 0 || x >= arg_width() || y < 0 || y >= arg_height()) { continue; }
        let source = ((image * arg_channels() + first + c) * arg_height() + y) * arg_width() + x;
        sum += at_x(source) * at_weight(((channel * channels + c) * arg_kernel_h() + ky) * arg_kernel_w() + kx);
      }
    }
    total += sum;
  }
  set_out(element, epilogue(total, channel, element));
}
