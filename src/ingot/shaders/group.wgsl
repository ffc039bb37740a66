// group.wgsl: what the lanes of a workgroup make together: eight of them what eight lanes have found each, in order, then
// all of them what those eight have, so that every run gives the same bits. Two barriers are enough: who writes for the
// next time has passed the one behind which all have read.

var<workgroup> found: array<f32, LANES>;

var<workgroup> found_by_eight: array<f32, 8>;

fn group_sum(x: f32, lane: i32) -> f32 {
  found[lane] = x;
  workgroupBarrier();
  if (lane < 8) {
    var sum = found[lane * 8];
    for (var i = 1; i < 8; i++) { sum += found[lane * 8 + i]; }
    found_by_eight[lane] = sum;
  }
  workgroupBarrier();
  var total = found_by_eight[0];
  for (var i = 1; i < 8; i++) { total += found_by_eight[i]; }
  return total;
}

// A NaN wins.
fn group_max(x: f32, lane: i32) -> f32 {
  found[lane] = x;
  workgroupBarrier();
  if (lane < 8) {
    var most = found[lane * 8];
    for (var i = 1; i < 8; i++) { most = maximum_f32(most, found[lane * 8 + i]); }
    found_by_eight[lane] = most;
  }
  workgroupBarrier();
  var most = found_by_eight[0];
  for (var i = 1; i < 8; i++) { most = maximum_f32(most, found_by_eight[i]); }
  return most;
}

var<workgroup> found_values: array<T, LANES>;

// What the first `count` lanes have found, by a kernel's `combine`: the first lane gets it.
fn group_combined(value: T, count: i32, lane: i32) -> T {
  found_values[lane] = value;
  workgroupBarrier();
  var all = value;
  if (lane == 0) {
    for (var i = 1; i < min(LANES, count); i++) { all = combine(all, found_values[i]); }
  }
  return all;
}
