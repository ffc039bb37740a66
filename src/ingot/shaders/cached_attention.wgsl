// cached_attention.wgsl: out = softmax(cap(scale q @ keys)) @ values over the positions that a row sees, online over the
// cache's blocks of 64 (Milakov and Gimelshein, 2018). A workgroup makes a head of a row; a lane has a position of a
// block, then dims of out, in whose place the sums so far lie.

var<workgroup> weights_found: array<f32, LANES>;

var<workgroup> row_found: vec3<i32>;

// The row's owner and the positions that it sees, from the first on and up to the last: none after a fault. Every lane
// gets the same, which is known to the compiler, so that barriers may follow.
fn row_seen(r: i32, lane: i32) -> vec3<i32> {
  if (lane == 0) {
    row_found = vec3<i32>(0, 0, 0);
    if (has_place(r)) {
      let last = int_positions(r);
      row_found = vec3<i32>(int_owners(r), select(0, max(0, last - arg_window() + 1), arg_window() > 0), last + 1);
    }
  }
  return workgroupUniformLoad(&row_found);
}

fn capped(score: f32) -> f32 {
  if (arg_softcap() == 0.0f) { return score; }
  return arg_softcap() * tanh_f32(score / arg_softcap());
}

fn score(q: i32, keys: i32) -> f32 {
  var sum = 0.0f;
  for (var d = 0; d < arg_head_dim(); d++) { sum += at_q(q + d) * at_keys(keys + d * 64); }
  return capped(arg_scale() * sum);
}

fn weight(score: f32, most: f32) -> f32 { return select(exp_f32(score - most), 0.0f, score == -infinity()); }

fn work(group: i32, lane: i32) {
  let r = group / arg_heads();
  if (r >= arg_rows()) { return; }
  let h = group % arg_heads();
  let kv = h / (arg_heads() / arg_kv_heads());
  let q = r * arg_q_strides(0) + h * arg_q_strides(1);
  let out = r * arg_out_strides(0) + h * arg_out_strides(1);
  let row = row_seen(r, lane);
  var most = -infinity();
  var total = 0.0f;
  for (var d = lane; d < arg_v_dim(); d += LANES) { set_out(out + d, 0.0f); }
  for (var i = row.y / 64; i * 64 < row.z; i++) {
    let block = block_of(row.x, i);
    let position = i * 64 + lane;
    var own = -infinity();
    if (block >= 0 && position >= row.y && position < row.z) {
      own = score(q, (block * arg_kv_heads() + kv) * arg_head_dim() * 64 + lane);
    }
    let before = most;
    most = max(before, group_max(own, lane));
    let mine = weight(own, most);
    weights_found[lane] = mine;
    let kept = weight(before, most);
    total = total * kept + group_sum(mine, lane);
    let values = (block * arg_kv_heads() + kv) * arg_v_dim() * 64;
    for (var d = lane; d < arg_v_dim() && block >= 0; d += LANES) {
      var sum = 0.0f;
      for (var j = 0; j < min(64, row.z - i * 64); j++) {
        sum += weights_found[j] * at_values(values + j * arg_v_dim() + d);
      }
      set_out(out + d, at_out(out + d) * kept + sum);
    }
    workgroupBarrier();
  }
  for (var d = lane; d < arg_v_dim() && total > 0.0f; d += LANES) { set_out(out + d, at_out(out + d) / total); }
}
