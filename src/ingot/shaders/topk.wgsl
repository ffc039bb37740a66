// topk.wgsl: the k best of rows of adjacent elements, in order, and their indices; equal elements by index, NaN is the
// largest. A workgroup computes one row: each round finds the best element after the one before. The kernel defines
// `key`: larger for better elements.

var<workgroup> found_keys: array<i32, LANES>;

var<workgroup> found_indices: array<i32, LANES>;

fn is_better(key: i32, index: i32, other: i32, other_index: i32) -> bool {
  return other_index < 0 || key > other || (key == other && index < other_index);
}

fn work(group: i32, lane: i32) {
  if (group >= arg_rows()) { return; }
  let x = group * arg_x_stride();
  var last = 0x7fffffff;
  var last_index = -1;
  for (var round = 0; round < arg_k(); round++) {
    var best = 0;
    var index = -1;
    for (var i = lane; i < arg_cols(); i += LANES) {
      let k = key(at_x(x + i));
      let comes_after = k < last || (k == last && i > last_index);
      if (comes_after && is_better(k, i, best, index)) {
        best = k;
        index = i;
      }
    }
    found_keys[lane] = best;
    found_indices[lane] = index;
    workgroupBarrier();
    for (var i = 0; i < LANES; i++) {
      if (found_indices[i] >= 0 && is_better(found_keys[i], found_indices[i], best, index)) {
        best = found_keys[i];
        index = found_indices[i];
      }
    }
    workgroupBarrier();
    last = best;
    last_index = index;
    if (lane == 0) {
      set_out(group * arg_k() + round, at_x(x + index));
      set_int_indices(group * arg_k() + round, index);
    }
  }
}
