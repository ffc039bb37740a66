// gemm_packed.wgsl: c[m, n] = epilogue(alpha a[m, k] @ b[k, n]), b in panels of 32 columns. A workgroup makes 32 rows
// of a panel's 32 columns, a lane 4 of each. Sums go in blocks of 256 along k, added in order.

fn work(group: i32, lane: i32) {
  let tiles = (arg_m() + 31) / 32;
  let panel = group / tiles;
  let column = panel * 32 + lane % 8 * 4;
  if (column >= arg_n()) { return; }
  let row = group % tiles * 32 + lane / 8 * 4;
  let last = arg_m() - 1;
  var a: array<i32, 4>;
  for (var r = 0; r < 4; r++) { a[r] = min(row + r, last) * arg_a_stride(); }
  var total: array<vec4<f32>, 4>;
  let b = panel * panel_words(arg_k());
  for (var begin = 0; begin < arg_k(); begin += 256) {
    var sum = array<vec4<f32>, 4>();
    let end = min(begin + 256, arg_k());
    for (var i = begin; i < end; i++) {
      let those = panel_row(b, lane % 8 * 4, i);
      sum[0] += at_a(a[0] + i) * those;
      sum[1] += at_a(a[1] + i) * those;
      sum[2] += at_a(a[2] + i) * those;
      sum[3] += at_a(a[3] + i) * those;
    }
    for (var r = 0; r < 4; r++) { total[r] += sum[r]; }
  }
  for (var r = 0; r < 4; r++) {
    for (var c = 0; c < 4; c++) {
      let x = row + r;
      let y = column + c;
      if (x < arg_m() && y < arg_n()) {
        set_c(x * arg_c_stride() + y, epilogue(arg_alpha() * total[r][c], y, x * arg_residual_stride() + y));
      }
    }
  }
}
