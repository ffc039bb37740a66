// pack.wgsl: pack a strided matrix of k rows and n columns in panels of 32 columns, [n / 32][k][32], with zeros after
// the last column. A lane packs one element.

fn work(group: i32, lane: i32) {
  let element = group * LANES + lane;
  let i = element / 32 % arg_k();
  let column = element / 32 / arg_k() * 32 + element % 32;
  if (column - element % 32 >= arg_n()) { return; }
  var value = 0.0f;
  if (column < arg_n()) { value = arg_scale() * at_src(i * arg_k_stride() + column * arg_n_stride()); }
  set_dst(element, value);
}
