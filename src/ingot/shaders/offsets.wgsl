// places.wgsl: offsets of elements in the two loop nests of a reduction, and their number.

fn outer_place(element: i32) -> i32 {
  var rest = element;
  var place = 0;
  for (var d = arg_outer_rank() - 1; d >= 0; d--) {
    place += rest % arg_outer_shape(d) * arg_outer_strides(d);
    rest /= arg_outer_shape(d);
  }
  return place;
}

fn reduced_place(element: i32) -> i32 {
  var rest = element;
  var place = 0;
  for (var d = arg_reduced_rank() - 1; d >= 0; d--) {
    place += rest % arg_reduced_shape(d) * arg_reduced_strides(d);
    rest /= arg_reduced_shape(d);
  }
  return place;
}

fn outer_count() -> i32 {
  var count = 1;
  for (var d = 0; d < arg_outer_rank(); d++) { count *= arg_outer_shape(d); }
  return count;
}

fn reduced_count() -> i32 {
  var count = 1;
  for (var d = 0; d < arg_reduced_rank(); d++) { count *= arg_reduced_shape(d); }
  return count;
}
