// reduce_few.wgsl: reduce for at most as many elements as a workgroup has lanes, in the same order; a lane computes one
// element of out.

fn work(group: i32, lane: i32) {
  let element = group * LANES + lane;
  if (element >= outer_count()) { return; }
  let x = outer_offset(element);
  let count = reduced_count();
  var value = neutral();
  for (var i = 0; i < count; i++) { value = combine(value, at_x(x + reduced_offset(i))); }
  set_out(element, finish(value, count));
}
