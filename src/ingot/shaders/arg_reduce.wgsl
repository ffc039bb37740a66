// arg_reduce.wgsl: the index of the first of the best elements of x[outer, reduced]; the kernel defines `better`. A
// workgroup computes one index.

var<workgroup> found_indices: array<i32, LANES>;

fn choose(x: i32, a: i32, b: i32) -> i32 {
  let p = at_x(x + reduced_offset(a));
  let q = at_x(x + reduced_offset(b));
  return select(a, b, better(q, p) || (b < a && !better(p, q)));
}

fn work(group: i32, lane: i32) {
  if (group >= outer_count()) { return; }
  let x = outer_offset(group);
  let count = reduced_count();
  var index = min(lane, count - 1);
  for (var i = lane + LANES; i < count; i += LANES) { index = choose(x, index, i); }
  found_indices[lane] = index;
  workgroupBarrier();
  if (lane > 0) { return; }
  for (var i = 1; i < min(LANES, count); i++) { index = choose(x, index, found_indices[i]); }
  set_int_out(group, index);
}
