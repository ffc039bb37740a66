// gemv_packed.wgsl: gemm_packed for few rows. A workgroup computes one row of a panel's 32 columns.

fn work(group: i32, lane: i32) {
  let row = group % arg_m();
  let panel = group / arg_m();
  multiply_row(row, panel, lane);
  let y = panel * 32 + lane;
  if (lane >= 32 || y >= arg_n()) { return; }
  set_c(row * arg_c_stride() + y, epilogue(arg_alpha() * total_of(lane), y, row * arg_residual_stride() + y));
}
