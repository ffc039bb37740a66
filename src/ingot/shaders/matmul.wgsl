// matmul.wgsl: gemm_packed for each of a batch, with a b that lies anyhow. A workgroup makes 32 rows and columns, a lane
// 4 of each, which lie 8 apart.

fn work(group: i32, lane: i32) {
  let rows = (arg_m() + 31) / 32;
  let columns = (arg_n() + 31) / 32;
  let row = group % rows * 32 + lane / 8;
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
  var total: array<vec4<f32>, 4>;
  for (var begin = 0; begin < arg_k(); begin += 256) {
    var sum = array<vec4<f32>, 4>();
    let end = min(begin + 256, arg_k());
    for (var i = begin; i < end; i++) {
      var those = vec4<f32>();
      for (var s = 0; s < 4; s++) {
        let y = min(column + 8 * s, arg_n() - 1);
        those[s] = at_b(b + i * arg_b_k_stride() + y * arg_b_n_stride());
      }
      for (var r = 0; r < 4; r++) {
        let x = min(row + 8 * r, arg_m() - 1);
        sum[r] += at_a(a + x * arg_a_stride() + i) * those;
      }
    }
    for (var r = 0; r < 4; r++) { total[r] += sum[r]; }
  }
  for (var r = 0; r < 4; r++) {
    for (var s = 0; s < 4; s++) {
      let x = row + 8 * r;
      let y = column + 8 * s;
      if (x < arg_m() && y < arg_n()) {
        let place = residual + x * arg_residual_stride() + y;
        set_c(c + x * arg_c_stride() + y, epilogue(arg_alpha() * total[r][s], y, place));
      }
    }
  }
}
