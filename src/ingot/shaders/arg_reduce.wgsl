// arg_reduce.wgsl: the index of the first of the best elements of x[outer, reduced]; the kernel defines `better`. A
// workgroup computes one index.

var<workgroup> found_places: array<i32, LANES>;

fn choose(x: i32, a: i32, b: i32) -> i32 {
  let p = at_x(x + reduced_place(a));
  let q = at_x(x + reduced_place(b));
  return select(a, b, better(q, p) || (b < a && !better(p, q)));
}

fn work(group: i32, lane: i32) {
  if (group >= outer_count()) { return; }
  let x = outer_place(group);
  let count = reduced_count();
  var place = min(lane, count - 1);
  for (var i = lane + LANES; i < count; i += LANES) { place = choose(x, place, i); }
  found_places[lane] = place;
  workgroupBarrier();
  if (lane > 0) { return; }
  for (var i = 1; i < min(LANES, count); i++) { place = choose(x, place, found_places[i]); }
  set_int_out(group, place);
}
