// gather_elements.wgsl: out[i...] = x[i... with indices[i...] at `axis`]; a lane copies one element.

fn work(group: i32, lane: i32) {
  let element = group * LANES + lane;
  var rest = element;
  var offset = 0;
  for (var d = arg_rank() - 1; d >= 0; d--) {
    if (d != arg_axis()) { offset += rest % arg_shape(d) * arg_x_strides(d); }
    rest /= arg_shape(d);
  }
  if (rest > 0) { return; }
  let row = from_front(int_indices(element), arg_limit());
  var value = 0;
  if (row >= 0) { value = int_x(offset + row * arg_x_strides(arg_axis())); }
  set_int_out(element, value);
}
