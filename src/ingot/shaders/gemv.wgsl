// gemv.wgsl: a row times the 32 columns of a panel, by a workgroup: a lane has 4 columns and every eighth element of k;
// the partial sums of lanes with the same columns are added in order.

var<workgroup> row_sums: array<vec4<f32>, LANES>;

fn multiply_row(row: i32, panel: i32, lane: i32) {
  let a = row * arg_a_stride();
  let b = panel * panel_words(arg_k());
  var sum = vec4<f32>();
  for (var i = lane / 8; i < arg_k(); i += 8) { sum += at_a(a + i) * panel_row(b, lane % 8 * 4, i); }
  row_sums[lane] = sum;
  workgroupBarrier();
}

fn total_of(column: i32) -> f32 {
  var total = 0.0f;
  for (var part = 0; part < 8; part++) { total += row_sums[part * 8 + column / 4][column % 4]; }
  return total;
}
