// nest.wgsl: a loop nest over the elements of a result, one for each lane; operands broadcast by strides of 0. The
// kernel defines `store`.

fn work(group: i32, lane: i32) {
  var rest = group * LANES + lane;
  var a = 0;
  var b = 0;
  var c = 0;
  var out = 0;
  for (var d = arg_rank() - 1; d >= 0; d--) {
    let i = rest % arg_shape(d);
    rest /= arg_shape(d);
    a += i * arg_a_strides(d);
    b += i * arg_b_strides(d);
    c += i * arg_c_strides(d);
    out += i * arg_out_strides(d);
  }
  if (rest == 0) { store(a, b, c, out); }
}
