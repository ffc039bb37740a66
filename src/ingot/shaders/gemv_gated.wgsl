// gemv_gated.wgsl: gemm_gated for few rows. A workgroup makes one row of a panel's 16 columns, as gemv_packed makes 32: the
// sums of both halves are found alike.

var<workgroup> sums: array<vec4<f32>, LANES>;

fn total_of(column: i32) -> f32 {
  var total = 0.0f;
  for (var part = 0; part < 8; part++) { total += sums[part * 8 + column / 4][column % 4]; }
  return total;
}

fn work(group: i32, lane: i32) {
  let row = group % arg_m();
  let panel = group / arg_m();
  let a = row * arg_a_stride();
  let b = panel * panel_words(arg_k());
  var sum = vec4<f32>();
  for (var i = lane / 8; i < arg_k(); i += 8) { sum += at_a(a + i) * panel_row(b, lane % 8 * 4, i); }
  sums[lane] = sum;
  workgroupBarrier();
  let y = panel * 16 + lane;
  if (lane >= 16 || y >= arg_n()) { return; }
  set_c(row * arg_c_stride() + y, gated(total_of(lane), total_of(lane + 16), y));
}
