// gemm_gated.wgsl: c[m, n] = activation(gate) * up, the halves of alpha a[m, k] @ b[k, 2n] + bias. A panel of b holds 16
// columns of the first half, then 16 of the second. A workgroup makes 32 rows of 16 columns, a lane 2 rows of 4.

fn work(group: i32, lane: i32) {
  let tiles = (arg_m() + 31) / 32;
  let panel = group / tiles;
  let column = panel * 16 + lane % 4 * 4;
  if (column >= arg_n()) { return; }
  let row = group % tiles * 32 + lane / 4 * 2;
  let last = arg_m() - 1;
  let b = panel * panel_words(arg_k());
  var first: array<vec4<f32>, 2>;
  var second: array<vec4<f32>, 2>;
  for (var begin = 0; begin < arg_k(); begin += 256) {
    var sum = array<vec4<f32>, 4>();
    let end = min(begin + 256, arg_k());
    for (var i = begin; i < end; i++) {
      let gate = panel_row(b, lane % 4 * 4, i);
      let up = panel_row(b, 16 + lane % 4 * 4, i);
      let one = at_a(min(row, last) * arg_a_stride() + i);
      let two = at_a(min(row + 1, last) * arg_a_stride() + i);
      sum[0] += one * gate;
      sum[1] += two * gate;
      sum[2] += one * up;
      sum[3] += two * up;
    }
    for (var r = 0; r < 2; r++) {
      first[r] += sum[r];
      second[r] += sum[r + 2];
    }
  }
  for (var r = 0; r < 2; r++) {
    for (var c = 0; c < 4; c++) {
      if (row + r < arg_m() && column + c < arg_n()) {
        set_c((row + r) * arg_c_stride() + column + c, gated(first[r][c], second[r][c], column + c));
      }
    }
  }
}
