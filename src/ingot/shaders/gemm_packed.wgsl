// gemm_packed.wgsl: c[m, n] = epilogue(alpha a[m, k] @ b[k, n]), b in panels of 32 columns. A workgroup computes 8 ROWS
// rows of a panel's 32 columns, a lane 4 columns of ROWS rows. Sums are computed in blocks of TERMS along k, added in
// order. The kernel defines `add_rows` and ROWS.

fn work(group: i32, lane: i32) {
  let tiles = (arg_m() + 8 * ROWS - 1) / (8 * ROWS);
  let panel = group / tiles;
  let column = panel * 32 + lane % 8 * 4;
  if (column >= arg_n()) { return; }
  let row = (group % tiles * 8 + lane / 8) * ROWS;
  let last = arg_m() - 1;
  var a: array<i32, ROWS>;
  for (var r = 0; r < ROWS; r++) { a[r] = min(row + r, last) * arg_a_stride(); }
  var total: array<vec4<f32>, ROWS>;
  let b = panel * panel_words(arg_k());
  for (var begin = 0; begin < arg_k(); begin += TERMS) {
    var sum = array<vec4<Term>, ROWS>();
    let end = min(begin + TERMS, arg_k());
    for (var i = begin; i < end; i++) { add_rows(&sum, &a, i, panel_row(b, lane % 8 * 4, i)); }
    for (var r = 0; r < ROWS; r++) { total[r] += vec4<f32>(sum[r]); }
  }
  for (var r = 0; r < ROWS; r++) {
    for (var c = 0; c < 4; c++) {
      let x = row + r;
      let y = column + c;
      if (x < arg_m() && y < arg_n()) {
        set_c(x * arg_c_stride() + y, epilogue(arg_alpha() * total[r][c], y, x * arg_residual_stride() + y));
      }
    }
  }
}
