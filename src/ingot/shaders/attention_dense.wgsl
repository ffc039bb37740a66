// attention_dense.wgsl: attention whose rows and keys are in tensors [batch, head, row, dim].

fn batch_count() -> i32 { return arg_batch(); }

fn row_count() -> i32 { return arg_q_len(); }

fn key_count() -> i32 { return arg_kv_len(); }

fn q_offset(batch: i32, head: i32, row: i32) -> i32 {
  return batch * arg_q_strides(0) + head * arg_q_strides(1) + row * arg_q_strides(2);
}

fn out_offset(batch: i32, head: i32, row: i32) -> i32 {
  return batch * arg_out_strides(0) + head * arg_out_strides(1) + row * arg_out_strides(2);
}

// The owner of the keys that a row attends to, the first of them and their end.
fn seen_by(batch: i32, row: i32) -> vec3<i32> {
  var end = arg_kv_len();
  if (arg_causal() != 0) { end = clamp(row + arg_causal_offset() + 1, 0, end); }
  return vec3<i32>(batch, 0, end);
}

// The offset of the keys of a tile, from its first key on.
fn keys_offset(owner: i32, head: i32, begin: i32) -> i32 {
  return owner * arg_k_strides(0) + head * arg_k_strides(1) + begin * arg_k_strides(2);
}

fn values_offset(owner: i32, head: i32, begin: i32) -> i32 {
  return owner * arg_v_strides(0) + head * arg_v_strides(1) + begin * arg_v_strides(2);
}

fn key_at(offset: i32, key: i32, dim: i32) -> f32 { return at_k(offset + key * arg_k_strides(2) + dim); }

fn value_at(offset: i32, key: i32, dim: i32) -> f32 { return at_v(offset + key * arg_v_strides(2) + dim); }

// A score as the softmax reads it: scaled and masked.
fn bent(score: f32, batch: i32, head: i32, row: i32, key: i32) -> f32 {
  if (arg_mask_kind() == 0) { return score; }
  let rows = batch * arg_mask_strides(0) + head * arg_mask_strides(1) + row * arg_mask_strides(2);
  let offset = rows + key * arg_mask_strides(3);
  if (arg_mask_kind() == 2) { return score + at_mask(offset); }
  return select(score, -infinity(), int_mask(offset) == 0);
}

// An element of out.
fn settled(sum: f32, total: f32, most: f32, head: i32) -> f32 {
  if (total == 0.0f || (arg_zero_nan() != 0 && is_nan(total))) {
    return select(0.0f, nan(), arg_safe() == 0 && arg_zero_nan() == 0);
  }
  return sum / total;
}
