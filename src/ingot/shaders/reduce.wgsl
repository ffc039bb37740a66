// reduce.wgsl: out[outer] = reduce(x[outer, reduced]); a workgroup makes an element. `combine`, `neutral` and `finish` are
// the kernel's.

var<workgroup> found_values: array<T, LANES>;

fn work(group: i32, lane: i32) {
  if (group >= outer_count()) { return; }
  let x = outer_place(group);
  let count = reduced_count();
  var value = neutral();
  for (var i = lane; i < count; i += LANES) { value = combine(value, at_x(x + reduced_place(i))); }
  found_values[lane] = value;
  workgroupBarrier();
  if (lane > 0) { return; }
  for (var i = 1; i < min(LANES, count); i++) { value = combine(value, found_values[i]); }
  set_out(group, finish(value, count));
}
