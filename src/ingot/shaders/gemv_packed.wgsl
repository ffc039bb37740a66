// gemv_packed.wgsl: gemm_packed for few rows. A workgroup makes one row of a panel's 32 columns: a lane takes 4 columns
// and every eighth element of k, and those with the same columns add up what they found in order.

var<workgroup> sums: array<vec4<f32>, LANES>;

fn work(group: i32, lane: i32) {
  let row = group % arg_m();
  let panel = group / arg_m();
  let a = row * arg_a_stride();
  let b = panel * panel_words(arg_k());
  var sum = vec4<f32>();
  for (var i = lane / 8; i < arg_k(); i += 8) { sum += at_a(a + i) * panel_row(b, lane % 8 * 4, i); }
  sums[lane] = sum;
  workgroupBarrier();
  let y = panel * 32 + lane;
  if (lane >= 32 || row >= arg_m() || y >= arg_n()) { return; }
  var total = 0.0f;
  for (var part = 0; part < 8; part++) { total += sums[part * 8 + lane / 4][lane % 4]; }
  set_c(row * arg_c_stride() + y, epilogue(arg_alpha() * total, y, row * arg_residual_stride() + y));
}
