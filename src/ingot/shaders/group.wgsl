// group.wgsl: what the lanes of a workgroup make together. Each adds what all have found, in one order, so that every run
// gives the same bits, and a barrier before and after is enough.

var<workgroup> found: array<f32, LANES>;

fn group_sum(x: f32, lane: i32) -> f32 {
  found[lane] = x;
  workgroupBarrier();
  var total = found[0];
  for (var i = 1; i < LANES; i++) { total += found[i]; }
  workgroupBarrier();
  return total;
}

// A NaN wins.
fn group_max(x: f32, lane: i32) -> f32 {
  found[lane] = x;
  workgroupBarrier();
  var most = found[0];
  for (var i = 1; i < LANES; i++) { most = maximum_f32(most, found[i]); }
  workgroupBarrier();
  return most;
}
