// group.wgsl: reductions over the lanes of a workgroup: eight lanes each reduce the values of eight lanes, in order,
// then all lanes reduce these eight results, so that every run gives the same bits. Two barriers are enough: a lane
// that writes for the next reduction has passed the barrier after which all lanes have read.

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

// NaN in any lane is the result.
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

// Reduce the values of the first `count` lanes by the kernel's `combine`; the first lane gets the result.
fn group_combined(value: T, count: i32, lane: i32) -> T {
  found_values[lane] = value;
  workgroupBarrier();
  var all = value;
  if (lane == 0) {
    for (var i = 1; i < min(LANES, count); i++) { all = combine(all, found_values[i]); }
  }
  return all;
}
