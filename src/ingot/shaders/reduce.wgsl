// reduce.wgsl: out[outer] = reduce(x[outer, reduced]); a workgroup computes one element. The kernel defines `combine`,
// `neutral` and `finish`.

fn work(group: i32, lane: i32) {
  if (group >= outer_count()) { return; }
  let x = outer_offset(group);
  let count = reduced_count();
  var value = neutral();
  for (var i = lane; i < count; i += LANES) { value = combine(value, at_x(x + reduced_offset(i))); }
  value = group_combined(value, count, lane);
  if (lane == 0) { set_out(group, finish(value, count)); }
}
