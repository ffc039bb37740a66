// matmul.wgsl: gemm_packed for each of a batch, with a strided b. A workgroup computes 8 ROWS rows of 32 columns, a
// lane 4 columns of ROWS rows, both at a distance of 8. The kernel defines `add_rows` and ROWS.

fn work(group: i32, lane: i32) {
  let rows = (arg_m() + 8 * ROWS - 1) / (8 * ROWS);
  let columns = (arg_n() + 31) / 32;
  let row = group % rows * 8 * ROWS + lane / 8;
  let column = group / rows % columns * 32 + lane % 8;
  var batch = group / rows / columns;
  var a = 0;
  var b = 0;
  var c = 0;
  var residual = 0;
  for (var d = arg_batch_rank() - 1; d >= 0; d--) {
    let i = batch % arg_batch_shape(d);
    batch /= arg_batch_shape(d);
    a += i * arg_a_batch_strides(d);
    b += i * arg_b_batch_strides(d);
    c += i * arg_c_batch_strides(d);
    residual += i * arg_residual_batch_strides(d);
  }
  if (batch > 0) { return; }
  var rows_of_a: array<i32, ROWS>;
  for (var r = 0; r < ROWS; r++) { rows_of_a[r] = a + min(row + 8 * r, arg_m() - 1) * arg_a_stride(); }
  let columns_of_b = b + min(column + vec4<i32>(0, 8, 16, 24), vec4<i32>(arg_n() - 1)) * arg_b_n_stride();
  var total: array<vec4<f32>, ROWS>;
  for (var begin = 0; begin < arg_k(); begin += TERMS) {
    var sum = array<vec4<Term>, ROWS>();
    let end = min(begin + TERMS, arg_k());
    for (var i = begin; i < end; i++) {
      let y = columns_of_b + i * arg_b_k_stride();
      add_rows(&sum, &rows_of_a, i, vec4<f32>(at_b(y.x), at_b(y.y), at_b(y.z), at_b(y.w)));
    }
    for (var r = 0; r < ROWS; r++) { total[r] += vec4<f32>(sum[r]); }
  }
  for (var r = 0; r < ROWS; r++) {
    for (var s = 0; s < 4; s++) {
      let x = row + 8 * r;
      let y = column + 8 * s;
      if (x < arg_m() && y < arg_n()) {
        let offset = residual + x * arg_residual_stride() + y;
        set_c(c + x * arg_c_stride() + y, epilogue(arg_alpha() * total[r][s], y, offset));
      }
    }
  }
}
