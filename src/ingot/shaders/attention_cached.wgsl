// attention_cached.wgsl: attention whose keys are in a cache, in blocks of 64 positions, which are its tiles.

fn batch_count() -> i32 { return 1; }

fn row_count() -> i32 { return arg_rows(); }

fn key_count() -> i32 { return arg_blocks_each() * 64; }

fn q_offset(batch: i32, head: i32, row: i32) -> i32 { return row * arg_q_strides(0) + head * arg_q_strides(1); }

fn out_offset(batch: i32, head: i32, row: i32) -> i32 { return row * arg_out_strides(0) + head * arg_out_strides(1); }

// The owner of the keys that a row attends to, the first of them and their end; an empty range after a fault.
fn seen_by(batch: i32, row: i32) -> vec3<i32> {
  if (!has_slot(row)) { return vec3<i32>(0, 0, 0); }
  let last = int_positions(row);
  var first = select(0, max(0, last - arg_window() + 1), arg_window() > 0);
  if (arg_segment() > 0) { first = max(first, last / arg_segment() * arg_segment()); }
  return vec3<i32>(int_owners(row), first, last + 1);
}

// The offset of the keys of a block; any offset after a fault.
fn keys_offset(owner: i32, head: i32, begin: i32) -> i32 {
  return (max(0, block_of(owner, begin / 64)) * arg_kv_heads() + head) * arg_head_dim() * 64;
}

fn values_offset(owner: i32, head: i32, begin: i32) -> i32 {
  return (max(0, block_of(owner, begin / 64)) * arg_kv_heads() + head) * arg_v_dim() * 64;
}

fn key_at(offset: i32, key: i32, dim: i32) -> f32 { return at_keys(offset + dim * 64 + key); }

fn value_at(offset: i32, key: i32, dim: i32) -> f32 { return at_values(offset + key * arg_v_dim() + dim); }

// A score as the softmax reads it: scaled, capped and biased.
fn bent(score: f32, batch: i32, head: i32, row: i32, key: i32) -> f32 {
  var capped = score;
  if (arg_softcap() != 0.0f) { capped = arg_softcap() * tanh_f32(score / arg_softcap()); }
  if (!has_biases) { return capped; }
  let first = select(0, key_count() - 1 - int_positions(row), arg_relative() != 0);
  return capped + at_biases(head * key_count() + first + key);
}

// An element of out. A sink adds to the total only.
fn settled(sum: f32, total: f32, most: f32, head: i32) -> f32 {
  if (total == 0.0f) { return 0.0f; }
  if (!has_sinks) { return sum / total; }
  return sum / (total + exp_f32(at_sinks(head) - most));
}
