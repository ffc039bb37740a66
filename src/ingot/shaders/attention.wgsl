// attention.wgsl: what the bodies of attention share: softmax(scale q @ k^T) @ v online over tiles of 64 keys (Milakov and
// Gimelshein, 2018). Where keys and values lie, attention_dense.wgsl or attention_cached.wgsl says; PART_KEYS is a kernel's.

// How many parts the keys are cut into where each has a workgroup.
fn part_count() -> i32 { return (key_count() + PART_KEYS - 1) / PART_KEYS; }

// What a part of a row's keys leaves for those that join them: sums by dims, the largest score, and the total.
fn part_place(row_of_head: i32, part: i32) -> i32 { return (row_of_head * part_count() + part) * (arg_v_dim() + 2); }

// What a score weighs beside the largest: nothing where it is -inf, though the largest be that, too.
fn weight_of(score: f32, most: f32) -> f32 { return select(exp_f32(score - most), 0.0f, score == -infinity()); }
