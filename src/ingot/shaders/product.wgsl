// product.wgsl: out[i] = sum over k of a[i, k] b[i, k]; a lane computes one element.

fn work(group: i32, lane: i32) {
  var rest = group * LANES + lane;
  var a = 0;
  var b = 0;
  var out = 0;
  for (var d = arg_rank() - 1; d >= 0; d--) {
    let i = rest % arg_shape(d);
    rest /= arg_shape(d);
    a += i * arg_a_strides(d);
    b += i * arg_b_strides(d);
    out += i * arg_out_strides(d);
  }
  if (rest > 0) { return; }
  var sum = T();
  for (var k = 0; k < arg_k(); k++) { sum += at_a(a + k * arg_a_k_stride()) * at_b(b + k * arg_b_k_stride()); }
  set_out(out, sum);
}
