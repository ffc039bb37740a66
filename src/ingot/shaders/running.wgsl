// running.wgsl: out[o, i, j] = the sum or product of x[o, 0..i, j]; a lane computes one line. The kernel defines
// `combine` and `neutral`.

fn work(group: i32, lane: i32) {
  let line = group * LANES + lane;
  if (line >= arg_outer() * arg_inner()) { return; }
  let begin = line / arg_inner() * arg_count() * arg_inner() + line % arg_inner();
  var total = neutral();
  for (var i = 0; i < arg_count(); i++) {
    total = combine(total, at_x(begin + i * arg_inner()));
    set_out(begin + i * arg_inner(), total);
  }
}
