// scatter.wgsl: out[i... with indices[i...] at `axis`] = updates[i...], or the merge of it with the present element. A
// lane updates one line along the axis, in order. The kernel defines `merged`.

fn work(group: i32, lane: i32) {
  var rest = group * LANES + lane;
  var updates = 0;
  var indices = 0;
  var out = 0;
  var size = 1;
  var inner = 1;
  for (var d = arg_rank() - 1; d >= 0; d--) {
    if (d == arg_axis()) {
      inner = size;
    } else {
      let i = rest % arg_shape(d);
      rest /= arg_shape(d);
      updates += i * size;
      indices += i * arg_index_strides(d);
      out += i * arg_out_strides(d);
    }
    size *= arg_shape(d);
  }
  if (rest > 0) { return; }
  for (var k = 0; k < arg_shape(arg_axis()); k++) {
    let row = from_front(int_indices(indices + k * arg_index_strides(arg_axis())), arg_limit());
    if (row < 0) { continue; }
    let offset = out + row * arg_out_strides(arg_axis());
    set_out(offset, merged(at_out(offset), at_updates(updates + k * inner)));
  }
}
