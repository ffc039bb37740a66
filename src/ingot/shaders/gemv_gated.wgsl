// gemv_gated.wgsl: gemm_gated for few rows. A workgroup computes one row of a panel's 16 columns, with the sums of both
// halves.

fn work(group: i32, lane: i32) {
  let row = group % arg_m();
  let panel = group / arg_m();
  multiply_row(row, panel, lane);
  let y = panel * 16 + lane;
  if (lane >= 16 || y >= arg_n()) { return; }
  set_c(row * arg_c_stride() + y, gated(total_of(lane), total_of(lane + 16), y));
}
