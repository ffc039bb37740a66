// attention_rows.wgsl: attention for few rows. A workgroup computes a row of a head, or the partial result of a part of
// its keys: a lane first has a key of a tile, then dims of out. The kernel defines `parts` and `leave`.

var<workgroup> weights_found: array<f32, LANES>;

var<workgroup> seen_found: vec3<i32>;

// The keys that a row attends to. Every lane gets the same value, and the compiler knows that it is uniform, so that
// barriers may follow.
fn row_seen(batch: i32, row: i32, lane: i32) -> vec3<i32> {
  if (lane == 0) { seen_found = seen_by(batch, row); }
  return workgroupUniformLoad(&seen_found);
}

fn score(q: i32, keys: i32, key: i32) -> f32 {
  var sum = 0.0f;
  for (var d = 0; d < arg_head_dim(); d++) { sum += at_q(q + d) * key_at(keys, key, d); }
  return arg_scale() * sum;
}

fn work(group: i32, lane: i32) {
  let part = group % parts();
  let row = group / parts() % row_count();
  let head = group / parts() / row_count() % arg_heads();
  let batch = group / parts() / row_count() / arg_heads();
  if (batch >= batch_count()) { return; }
  let kv = head / (arg_heads() / arg_kv_heads());
  let seen = row_seen(batch, row, lane);
  let first = select(seen.y, max(seen.y, part * PART_KEYS), parts() > 1);
  let end = select(seen.z, min(seen.z, (part + 1) * PART_KEYS), parts() > 1);
  var most = -infinity();
  var total = 0.0f;
  var sums = array<f32, COLUMNS>();
  for (var begin = first / LANES * LANES; begin < end; begin += LANES) {
    let keys = keys_offset(seen.x, kv, begin);
    let values = values_offset(seen.x, kv, begin);
    let key = begin + lane;
    var own = -infinity();
    if (key >= first && key < end) {
      own = bent(score(q_offset(batch, head, row), keys, lane), batch, head, row, key);
    }
    let before = most;
    most = max(before, group_max(own, lane));
    let mine = weight_of(own, most);
    weights_found[lane] = mine;
    let rescale = weight_of(before, most);
    total = total * rescale + group_sum(mine, lane);
    for (var n = 0; n < COLUMNS; n++) {
      sums[n] *= rescale;
      let d = n * LANES + lane;
      if (d < arg_v_dim()) {
        for (var j = max(0, first - begin); j < min(LANES, end - begin); j++) {
          sums[n] += weights_found[j] * value_at(values, j, d);
        }
      }
    }
    workgroupBarrier();
  }
  for (var n = 0; n < COLUMNS; n++) {
    let d = n * LANES + lane;
    if (d < arg_v_dim()) { leave(group, out_offset(batch, head, row), d, sums[n], most, total); }
  }
}
