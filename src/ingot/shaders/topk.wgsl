// topk.wgsl: the k best of rows of adjacent elements, in order, and their indices; equal elements by index, NaN is the
// largest. A workgroup computes one row: each round finds the best element after the one before. The kernel defines
// `key`: larger for better elements.

var<workgroup> found_keys: array<i32, LANES>;

var<workgroup> found_places: array<i32, LANES>;

fn is_better(key: i32, place: i32, other: i32, other_place: i32) -> bool {
  return other_place < 0 || key > other || (key == other && place < other_place);
}

fn work(group: i32, lane: i32) {
  if (group >= arg_rows()) { return; }
  let x = group * arg_x_stride();
  var last = 0x7fffffff;
  var last_place = -1;
  for (var round = 0; round < arg_k(); round++) {
    var best = 0;
    var place = -1;
    for (var i = lane; i < arg_cols(); i += LANES) {
      let k = key(at_x(x + i));
      let comes_after = k < last || (k == last && i > last_place);
      if (comes_after && is_better(k, i, best, place)) {
        best = k;
        place = i;
      }
    }
    found_keys[lane] = best;
    found_places[lane] = place;
    workgroupBarrier();
    for (var i = 0; i < LANES; i++) {
      if (found_places[i] >= 0 && is_better(found_keys[i], found_places[i], best, place)) {
        best = found_keys[i];
        place = found_places[i];
      }
    }
    workgroupBarrier();
    last = best;
    last_place = place;
    if (lane == 0) {
      set_out(group * arg_k() + round, at_x(x + place));
      set_int_indices(group * arg_k() + round, place);
    }
  }
}
