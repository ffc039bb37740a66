// panels.wgsl: panels of 32 columns of a matrix: [n / 32][k][32] of floats or f16, [n / 32][ceil(k / 2)][32] of bf16
// pairs along k, and quantized weights in blocks of 32 along k. The kernel defines `panel_words`, and `panel_row` of 4
// columns.

// Element i of pairs.
fn bf16_of(pairs: vec4<u32>, i: i32) -> vec4<f32> {
  return bitcast<vec4<f32>>(select(pairs << vec4<u32>(16u), pairs & vec4<u32>(0xffff0000u), (i & 1) == 1));
}

// Element i of a block of quantized weights, from words of four 8-bit or eight 4-bit elements.
fn code_of(quads: vec4<u32>, i: i32, bits: i32) -> vec4<f32> {
  let shift = u32(select(i % 4 * 8 + i / 16 * 4, i % 4 * 8, bits == 8));
  return vec4<f32>((quads >> vec4<u32>(shift)) & vec4<u32>((1u << u32(bits)) - 1u));
}

// Zero points, a byte each.
fn zeros_of(word: u32) -> vec4<f32> { return vec4<f32>((vec4<u32>(word) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(255u)); }
