// panels.wgsl: panels of 32 columns of a matrix, [n / 32][k][32] as floats, [n / 32][ceil(k / 2)][32] of pairs along k as
// bf16. `panel_words` and `panel_row`, of 4 columns from a place in row 0 on, are a kernel's.

fn f32_words(k: i32) -> i32 { return k * 32; }

fn bf16_words(k: i32) -> i32 { return (k + 1) / 2 * 32; }

// Element i of pairs.
fn bf16_of(pairs: vec4<u32>, i: i32) -> vec4<f32> {
  return bitcast<vec4<f32>>(select(pairs << vec4<u32>(16u), pairs & vec4<u32>(0xffff0000u), (i & 1) == 1));
}
