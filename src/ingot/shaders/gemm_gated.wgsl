// gemm_gated.wgsl: c[m, n] = activation(gate) * up, the halves of alpha a[m, k] @ b[k, 2n] + bias. A panel of b has 16
// columns of the first half, then 16 of the second. A workgroup computes 16 ROWS rows of 16 columns, a lane 4 columns
// of ROWS rows. The kernel defines `add_rows` and ROWS.

fn work(group: i32, lane: i32) {
  let tiles = (arg_m() + 16 * ROWS - 1) / (16 * ROWS);
  let panel = group / tiles;
  let column = panel * 16 + lane % 4 * 4;
  if (column >= arg_n()) { return; }
  let row = (group % tiles * 16 + lane / 4) * ROWS;
  let last = arg_m() - 1;
  let b = panel * panel_words(arg_k());
  var a: array<i32, ROWS>;
  for (var r = 0; r < ROWS; r++) { a[r] = min(row + r, last) * arg_a_stride(); }
  var first: array<vec4<f32>, ROWS>;
  var second: array<vec4<f32>, ROWS>;
  for (var begin = 0; begin < arg_k(); begin += TERMS) {
    var gate = array<vec4<Term>, ROWS>();
    var up = array<vec4<Term>, ROWS>();
    let end = min(begin + TERMS, arg_k());
    for (var i = begin; i < end; i++) {
      add_rows(&gate, &a, i, panel_row(b, lane % 4 * 4, i));
      add_rows(&up, &a, i, panel_row(b, 16 + lane % 4 * 4, i));
    }
    for (var r = 0; r < ROWS; r++) {
      first[r] += vec4<f32>(gate[r]);
      second[r] += vec4<f32>(up[r]);
    }
  }
  for (var r = 0; r < ROWS; r++) {
    for (var c = 0; c < 4; c++) {
      if (row + r < arg_m() && column + c < arg_n()) {
        set_c((row + r) * arg_c_stride() + column + c, gated(first[r][c], second[r][c], column + c));
      }
    }
  }
}
