// conv_packed.wgsl: 2-D convolution of images with adjacent channels, with a filter in panels of 32 outputs for each
// group, k over kernel row, kernel column and channel. A workgroup computes 32 pixels of a panel, a lane 4 outputs of
// ROWS pixels; ROWS is 4. The kernel defines `add_rows` and ROWS.

fn filter_row(i: i32) -> vec4<f32> {
  return vec4<f32>(at_weight(i), at_weight(i + 1), at_weight(i + 2), at_weight(i + 3));
}

fn work(group: i32, lane: i32) {
  let pixels = arg_batch() * arg_out_height() * arg_out_width();
  let tiles = (pixels + 31) / 32;
  let each = arg_out_channels() / arg_groups();
  let channels = arg_channels() / arg_groups();
  let panels = (each + 31) / 32;
  let panel = group / tiles % panels;
  let part = group / tiles / panels;
  let column = panel * 32 + lane % 8 * 4;
  if (part >= arg_groups() || column >= each) { return; }
  let k = channels * arg_kernel_h() * arg_kernel_w();
  let b = (part * panels + panel) * k * 32 + lane % 8 * 4;
  let first = group % tiles * 32 + lane / 8 * ROWS;
  var total: array<vec4<f32>, ROWS>;
  for (var ky = 0; ky < arg_kernel_h(); ky++) {
    for (var kx = 0; kx < arg_kernel_w(); kx++) {
      let tap = b + (ky * arg_kernel_w() + kx) * channels * 32;
      var sources: array<i32, ROWS>;  // below 0 outside of the image
      for (var r = 0; r < ROWS; r++) {
        let pixel = min(first + r, pixels - 1);
        let x = pixel % arg_out_width() * arg_stride_w() - arg_pad_left() + kx * arg_dilation_w();
        let y = pixel / arg_out_width() % arg_out_height() * arg_stride_h() - arg_pad_top() + ky * arg_dilation_h();
        let is_inside = x >= 0 && x < arg_width() && y >= 0 && y < arg_height();
        let image = pixel / arg_out_width() / arg_out_height();
        let source = image * arg_x_strides(0) + y * arg_x_strides(1) + x * arg_x_strides(2) + part * channels;
        sources[r] = select(-1, source, is_inside);
      }
      var sum = array<vec4<f32>, ROWS>();
      for (var c = 0; c < channels; c++) { add_rows(&sum, &sources, c, filter_row(tap + c * 32)); }
      for (var r = 0; r < ROWS; r++) { total[r] += sum[r]; }
    }
  }
  for (var r = 0; r < ROWS; r++) {
    let pixel = first + r;
    if (pixel >= pixels) { continue; }
    let x = pixel % arg_out_width();
    let y = pixel / arg_out_width() % arg_out_height();
    let image = pixel / arg_out_width() / arg_out_height();
    let out = image * arg_out_strides(0) + y * arg_out_strides(1) + x * arg_out_strides(2);
    let residual = image * arg_residual_strides(0) + y * arg_residual_strides(1) + x * arg_residual_strides(2);
    for (var c = 0; c < 4; c++) {
      let channel = part * each + column + c;
      if (column + c < each) { set_out(out + channel, epilogue(total[r][c], channel, residual + channel)); }
    }
  }
}
