// integer_matmul.wgsl: products of two activations of 8-bit integers, for each of a batch; a lane computes one element.

fn work(group: i32, lane: i32) {
  let element = group * LANES + lane;
  let y = element % arg_n();
  let x = element / arg_n() % arg_m();
  var batch = element / arg_n() / arg_m();
  var a = x * arg_a_stride();
  var b = y * arg_b_n_stride();
  var c = x * arg_c_stride() + y;
  for (var d = arg_batch_rank() - 1; d >= 0; d--) {
    let i = batch % arg_batch_shape(d);
    batch /= arg_batch_shape(d);
    a += i * arg_a_batch_strides(d);
    b += i * arg_b_batch_strides(d);
    c += i * arg_c_batch_strides(d);
  }
  if (batch > 0) { return; }
  var sum = 0;
  for (var k = 0; k < arg_k(); k++) {
    sum += (int_a(a + k) - int_a_zero(0)) * (int_b(b + k * arg_b_k_stride()) - int_b_zero(0));
  }
  leave(c, sum, activate(f32(sum) * at_scale(y * arg_scale_step())));
}
