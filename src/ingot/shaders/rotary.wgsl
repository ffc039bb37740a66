// rotary.wgsl: out = x cos + rotate_half(x) sin, where rotate_half(x) = (-second, first); a lane rotates one pair.

fn work(group: i32, lane: i32) {
  let half = arg_head_dim() / 2;
  let element = group * LANES + lane;
  let row = element / half % arg_rows();
  let head = element / half / arg_rows() % arg_heads();
  let batch = element / half / arg_rows() / arg_heads();
  if (batch >= arg_batch()) { return; }
  let i = element % half;
  let x = batch * arg_x_strides(0) + head * arg_x_strides(1) + row * arg_x_strides(2) + i;
  let c = batch * arg_cos_strides(0) + head * arg_cos_strides(1) + row * arg_cos_strides(2) + i;
  let s = batch * arg_sin_strides(0) + head * arg_sin_strides(1) + row * arg_sin_strides(2) + i;
  let out = batch * arg_out_strides(0) + head * arg_out_strides(1) + row * arg_out_strides(2) + i;
  let first = at_x(x);
  let second = at_x(x + half);
  set_out(out, first * at_cos(c) - second * at_sin(s));
  set_out(out + half, second * at_cos(c + half) + first * at_sin(s + half));
}
