// attention.wgsl: out = softmax(scale q @ k^T + mask) @ v, online over tiles of as many keys as there are lanes (Milakov
// and Gimelshein, 2018). A workgroup makes a row, whose sums so far lie in its place in out.

var<workgroup> weights_found: array<f32, LANES>;

fn score(q: i32, k: i32, mask: i32, j: i32) -> f32 {
  var sum = 0.0f;
  for (var d = 0; d < arg_head_dim(); d++) { sum += at_q(q + d) * at_k(k + j * arg_k_strides(2) + d); }
  sum *= arg_scale();
  if (arg_mask_kind() == 2) { sum += at_mask(mask + j * arg_mask_strides(3)); }
  if (arg_mask_kind() == 1 && int_mask(mask + j * arg_mask_strides(3)) == 0) { sum = -infinity(); }
  return sum;
}

fn weight(score: f32, most: f32) -> f32 { return select(exp_f32(score - most), 0.0f, score == -infinity()); }

fn work(group: i32, lane: i32) {
  let i = group % arg_q_len();
  let h = group / arg_q_len() % arg_heads();
  let b = group / arg_q_len() / arg_heads();
  if (b >= arg_batch()) { return; }
  let kv = h / (arg_heads() / arg_kv_heads());
  let q = b * arg_q_strides(0) + h * arg_q_strides(1) + i * arg_q_strides(2);
  let k = b * arg_k_strides(0) + kv * arg_k_strides(1);
  let v = b * arg_v_strides(0) + kv * arg_v_strides(1);
  let mask = b * arg_mask_strides(0) + h * arg_mask_strides(1) + i * arg_mask_strides(2);
  let out = b * arg_out_strides(0) + h * arg_out_strides(1) + i * arg_out_strides(2);
  var end = arg_kv_len();
  if (arg_causal() != 0) { end = clamp(i + arg_causal_offset() + 1, 0, end); }
  var most = -infinity();
  var total = 0.0f;
  for (var begin = 0; begin < end; begin += LANES) {
    var own = -infinity();
    if (begin + lane < end) { own = score(q, k, mask, begin + lane); }
    let before = most;
    most = max(before, group_max(own, lane));
    let mine = weight(own, most);
    weights_found[lane] = mine;
    let kept = weight(before, most);
    total = total * kept + group_sum(mine, lane);
    for (var d = lane; d < arg_v_dim(); d += LANES) {
      var sum = 0.0f;
      for (var j = 0; j < min(LANES, end - begin); j++) {
        sum += weights_found[j] * at_v(v + (begin + j) * arg_v_strides(2) + d);
      }
      if (begin > 0) { sum += at_out(out + d) * kept; }
      set_out(out + d, sum);
    }
    workgroupBarrier();
  }
  let is_nothing = total == 0.0f;
  for (var d = lane; d < arg_v_dim(); d += LANES) {
    if (is_nothing || (arg_zero_nan() != 0 && is_nan(total))) {
      set_out(out + d, select(0.0f, nan(), arg_safe() == 0 && arg_zero_nan() == 0));
    } else {
      set_out(out + d, at_out(out + d) / total);
    }
  }
}
