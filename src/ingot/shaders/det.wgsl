// det.wgsl: out[i] = the determinant of x[i, n, n], by Gaussian elimination with partial pivoting. A lane has one
// matrix and changes a copy of it in scratch.

// The row from k on with the largest element of column k; NaN counts as the largest.
fn pivot_of(a: i32, k: i32) -> i32 {
  var best = k;
  for (var i = k + 1; i < arg_n(); i++) {
    let found = at_scratch(a + best * arg_n() + k);
    let other = at_scratch(a + i * arg_n() + k);
    if (!is_nan(found) && (is_nan(other) || abs(other) > abs(found))) { best = i; }
  }
  return best;
}

fn work(group: i32, lane: i32) {
  let matrix = group * LANES + lane;
  if (matrix >= arg_count()) { return; }
  let n = arg_n();
  let a = matrix * n * n;
  for (var i = 0; i < n * n; i++) { set_scratch(a + i, at_x(a + i)); }
  var det = 1.0f;
  for (var k = 0; k < n; k++) {
    let pivot = pivot_of(a, k);
    for (var j = k; j < n && pivot != k; j++) {
      let swapped = at_scratch(a + k * n + j);
      set_scratch(a + k * n + j, at_scratch(a + pivot * n + j));
      set_scratch(a + pivot * n + j, swapped);
    }
    let first = at_scratch(a + k * n + k);
    det *= select(-first, first, pivot == k);
    if (first == 0.0f) { continue; }
    for (var i = k + 1; i < n; i++) {
      let factor = at_scratch(a + i * n + k) / first;
      for (var j = k + 1; j < n; j++) {
        set_scratch(a + i * n + j, at_scratch(a + i * n + j) - factor * at_scratch(a + k * n + j));
      }
    }
  }
  set_out(matrix, det);
}
