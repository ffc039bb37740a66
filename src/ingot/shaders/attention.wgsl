// attention.wgsl: shared by the bodies of attention: softmax(scale q @ k^T) @ v, online over tiles of 64 keys (Milakov
// and Gimelshein, 2018). attention_dense.wgsl or attention_cached.wgsl defines the addresses of keys and values; the
// kernel defines PART_KEYS.

// The number of parts that the keys are split into (flash decoding), one workgroup each.
fn part_count() -> i32 { return (key_count() + PART_KEYS - 1) / PART_KEYS; }

// The scratch offset of the partial result of a part of a row's keys: sums by dims, the largest score, and the total.
fn part_offset(row_of_head: i32, part: i32) -> i32 { return (row_of_head * part_count() + part) * (arg_v_dim() + 2); }

// The weight of a score relative to the largest: 0 where it is -inf, even if the largest is -inf too.
fn weight_of(score: f32, most: f32) -> f32 { return select(exp_f32(score - most), 0.0f, score == -infinity()); }
