// offsets.wgsl: offsets of elements in the two loop nests of a reduction, and their number.

fn outer_offset(element: i32) -> i32 {
  var rest = element;
  var offset = 0;
  for (var d = arg_outer_rank() - 1; d >= 0; d--) {
    offset += rest % arg_outer_shape(d) * arg_outer_strides(d);
    rest /= arg_outer_shape(d);
  }
  return offset;
}

fn reduced_offset(element: i32) -> i32 {
  var rest = element;
  var offset = 0;
  for (var d = arg_reduced_rank() - 1; d >= 0; d--) {
    offset += rest % arg_reduced_shape(d) * arg_reduced_strides(d);
    rest /= arg_reduced_shape(d);
  }
  return offset;
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
