/* gemm_decoded.c: gemm of floats with panels of quantized weights, for any number of rows. Weights are dequantized,
 * exactly, as they are read: for few rows in registers, for more rows a slice of a panel at a time. The bits are those
 * of gemm with panels of these floats. _transposed: the product with the transposed matrix, from the same panels: sums
 * run over their columns. */
#include <string.h>

#include "quant/quant.h"

/* Up to this many rows, weights are dequantized in registers. In plain C vectors fit into no registers, and a slice of
 * a panel is faster for one row, too. */
#if defined(ISA_scalar)
#define DECODED_FEW 0
#else
#define DECODED_FEW 4
#endif
#define DECODED_ROWS 4 /* the most rows of a body in registers */

/* Whether zero * scale is exact in float, so that one fused multiply-add dequantizes: it is for an f16 scale, and for a
 * zero point that is a power of two, as it is where panels have no zero points. */
static inline int decoded_fused(const int zeros, const int scale) { return scale == QUANT_F16 || !zeros; }

/* A block's quantized values, and the parameters for (q - zero) * scale, rounded once. less: zero * -scale where that
 * is exact, otherwise the zero point. */
typedef struct {
  const uint8_t *qweight;
  vf scale[2], less[2];
} decoded_block;

/* The block of a panel that begins at element k. */
static inline __attribute__((always_inline)) decoded_block decoded_at(const uint8_t *panel, int64_t k, int64_t blocks,
                                                                      const int bits, const int zeros,
                                                                      const int span, const int scale) {
  const int64_t code_bytes = INGOT_PANEL * 4 * bits, block = k / INGOT_QUANT_BLOCK, first = block / span * span;
  const int64_t shared = blocks - first < span ? blocks - first : span;
  const uint8_t *group = panel + quant_bytes(first, bits, zeros, span, scale), *scales = group + shared * code_bytes;
  const uint8_t *points = scales + scale * INGOT_PANEL;
  decoded_block b = {.qweight = group + (block - first) * code_bytes};
  INGOT_UNROLL for (int j = 0; j < 2; j++) {
    vf zero = v_set(bits == 8 ? 128.0f : 8.0f);
    const void *held = scales + 16 * scale * j;
    b.scale[j] = scale == QUANT_F16 ? v_load_f16(held) : v_load(held);
    if (zeros) {
      zero = v_load_i8((const int8_t *)points + 16 * j);
      zero = v_select(v_lt(zero, v_set(0.0f)), v_add(zero, v_set(256.0f)), zero);
      zero = v_mul(zero, v_set(bits == 8 ? 1.0f : 0.0625f));
    }
    b.less[j] = decoded_fused(zeros, scale) ? v_mul(zero, v_sub(v_set(-0.0f), b.scale[j])) : zero;
  }
  return b;
}

/* Half j of the columns of element i of a block. */
static inline __attribute__((always_inline)) vf decoded_columns(const decoded_block *b, const int i, const int j,
                                                                const int bits, const int fused) {
  const int at = i % (4 * bits), shift = 8 * (at % 4) + (bits == 4 && i >= 16 ? 4 : 0);
  const vi four = v_bits(v_load((const float *)(const void *)(b->qweight + at / 4 * 4 * INGOT_PANEL + 64 * j)));
  const vf code = v_from_int(vi_and(vi_sar(four, shift), vi_set((1 << bits) - 1)));
  return fused ? v_fma(code, b->scale[j], b->less[j]) : v_mul(v_sub(code, b->less[j]), b->scale[j]);
}

/* sum[rows, 32] += the first `count` elements of a block times those of a; all but a and the block is constant. */
static inline __attribute__((always_inline)) void decoded_step(const int rows, const int bits, const int fused,
                                                               const int count, const decoded_block *b,
                                                               const float *a, int64_t a_stride, vf sum[][2]) {
  INGOT_UNROLL for (int i = 0; i < INGOT_QUANT_BLOCK; i++) {
    if (i >= count) break;
    INGOT_UNROLL for (int j = 0; j < 2; j++) {
      const vf w = decoded_columns(b, i, j, bits, fused);
      INGOT_UNROLL for (int r = 0; r < rows; r++) sum[r][j] = v_fma(v_set(a[r * a_stride + i]), w, sum[r][j]);
    }
  }
}

/* sums[rows, 32] of one panel; rows, at most DECODED_FEW, are constant. */
static inline __attribute__((always_inline)) void decoded_few(const gemm_args *g, const int rows, const int bits,
                                                              const int zeros, const int span, const int scale,
                                                              const float *a, const uint8_t *panel, float *sums) {
  const int fused = decoded_fused(zeros, scale);
  const int64_t blocks = (g->k + INGOT_QUANT_BLOCK - 1) / INGOT_QUANT_BLOCK;
  memset(sums, 0, (size_t)rows * INGOT_PANEL * sizeof *sums);
  for (int64_t begin = 0; begin < g->k; begin += INGOT_K_BLOCK) {
    const int64_t end = g->k - begin < INGOT_K_BLOCK ? g->k : begin + INGOT_K_BLOCK;
    vf sum[DECODED_ROWS][2];
    INGOT_UNROLL for (int r = 0; r < rows; r++) sum[r][0] = sum[r][1] = v_set(0.0f);
    for (int64_t k = begin; k < end; k += INGOT_QUANT_BLOCK) {
      const decoded_block b = decoded_at(panel, k, blocks, bits, zeros, span, scale);
      if (end - k >= INGOT_QUANT_BLOCK)
        decoded_step(rows, bits, fused, INGOT_QUANT_BLOCK, &b, a + k, g->a_stride, sum);
      else
        decoded_step(rows, bits, fused, (int)(end - k), &b, a + k, g->a_stride, sum);
    }
    INGOT_UNROLL for (int r = 0; r < rows; r++) {
      INGOT_UNROLL for (int j = 0; j < 2; j++) {
        float *to = sums + r * INGOT_PANEL + 16 * j;
        v_store(to, begin ? v_add(v_load(to), sum[r][j]) : sum[r][j]);
      }
    }
  }
}

/* to[32, 32]: the weights of a block. */
static inline __attribute__((always_inline)) void decoded_write(const decoded_block *b, const int bits, const int fused,
                                                                float *to) {
  INGOT_UNROLL for (int i = 0; i < INGOT_QUANT_BLOCK; i++) {
    INGOT_UNROLL for (int j = 0; j < 2; j++)
      v_store(to + i * INGOT_PANEL + 16 * j, decoded_columns(b, i, j, bits, fused));
  }
}

/* sums[rows, 32] of a slice [count, 32] of a panel. more: they are added to the sums. */
static inline void decoded_tiles(int64_t rows, int64_t count, const float *a, int64_t a_stride, const float *slice,
                                 int more, float *sums) {
  const int64_t tiles = gemm_blocks(rows, a_stride);
  for (int64_t i = 0; i < tiles; i++) {
    const int64_t row = task_begin(rows, (int32_t)i, (int32_t)tiles);
    const gemm_product product = {
      .k = count, .a = a + row * a_stride, .a_stride = a_stride, .b = slice, .b_stride = INGOT_PANEL,
      .sums = sums + row * INGOT_PANEL, .sums_stride = INGOT_PANEL, .more = more};
    K(gemm_tile)(task_begin(rows, (int32_t)i + 1, (int32_t)tiles) - row, 1, &product);
  }
}

/* sums[rows, 32] of one panel for any number of rows up to INGOT_QUANT_ROWS. */
static inline __attribute__((always_inline)) void decoded_many(const gemm_args *g, int64_t rows, const int bits,
                                                               const int zeros, const int span, const int scale,
                                                               const float *a, const uint8_t *panel, float *sums) {
  const int fused = decoded_fused(zeros, scale);
  const int64_t blocks = (g->k + INGOT_QUANT_BLOCK - 1) / INGOT_QUANT_BLOCK;
  float slice[INGOT_K_BLOCK * INGOT_PANEL];
  if (g->k == 0) memset(sums, 0, (size_t)rows * INGOT_PANEL * sizeof *sums);
  for (int64_t begin = 0; begin < g->k; begin += INGOT_K_BLOCK) {
    const int64_t count = g->k - begin < INGOT_K_BLOCK ? g->k - begin : INGOT_K_BLOCK;
    for (int64_t k = 0; k < count; k += INGOT_QUANT_BLOCK) {
      const decoded_block b = decoded_at(panel, begin + k, blocks, bits, zeros, span, scale);
      decoded_write(&b, bits, fused, slice + k * INGOT_PANEL);
    }
    decoded_tiles(rows, count, a + begin, g->a_stride, slice, begin > 0, sums);
  }
}

/* sums[rows, 32] of the columns of c from `column` on: the same block of every panel, transposed. g->k counts the
 * columns of the panels, g->n their elements. */
static inline __attribute__((always_inline)) void decoded_transposed(const gemm_args *g, int64_t rows, const int bits,
                                                                     const int zeros, const int span, const int scale,
                                                                     int64_t column, const float *a, float *sums) {
  const int fused = decoded_fused(zeros, scale);
  const int64_t blocks = (g->n + INGOT_QUANT_BLOCK - 1) / INGOT_QUANT_BLOCK;
  const int64_t panel_bytes = quant_bytes(blocks, bits, zeros, span, scale);
  float slice[INGOT_K_BLOCK * INGOT_PANEL], tile[INGOT_QUANT_BLOCK * INGOT_PANEL];
  if (g->k == 0) memset(sums, 0, (size_t)rows * INGOT_PANEL * sizeof *sums);
  for (int64_t begin = 0; begin < g->k; begin += INGOT_K_BLOCK) {
    const int64_t count = g->k - begin < INGOT_K_BLOCK ? g->k - begin : INGOT_K_BLOCK;
    for (int64_t k = 0; k < count; k += INGOT_PANEL) {
      const uint8_t *panel = (const uint8_t *)g->b + (begin + k) / INGOT_PANEL * panel_bytes;
      const decoded_block b = decoded_at(panel, column, blocks, bits, zeros, span, scale);
      decoded_write(&b, bits, fused, tile);
      K(pack_panel)(tile, count - k < INGOT_PANEL ? count - k : INGOT_PANEL, INGOT_QUANT_BLOCK, 1, INGOT_PANEL, 1.0f,
                    slice + k * INGOT_PANEL);
    }
    decoded_tiles(rows, count, a + begin, g->a_stride, slice, begin > 0, sums);
  }
}

/* Compute a panel of gemm_decoded, sums[rows, 32]; column: its first column in c. */
typedef void (*decoded_panel)(const gemm_args *g, int64_t rows, int64_t column, const float *a, float *sums);

static inline void gemm_decoded(const gemm_args *g, decoded_panel panel_of, const int gated, int32_t task,
                                int32_t num_tasks) {
  const gemm_epilogue epilogue = gemm_args_epilogue(g);
  const int64_t width = gated ? INGOT_PANEL / 2 : INGOT_PANEL; /* columns of c in a panel */
  const gemm_share share = gemm_args_share(g, (g->n + width - 1) / width, task, num_tasks);
  const int64_t all_rows = share.row_end - share.row_begin;
  const int64_t chunks = (all_rows + INGOT_QUANT_ROWS - 1) / INGOT_QUANT_ROWS;
  float sums[INGOT_QUANT_ROWS * INGOT_PANEL];
  for (int64_t panel = share.panel_begin; panel < share.panel_end; panel++) {
    const int64_t column = panel * width, columns = g->n - column < width ? g->n - column : width;
    for (int64_t chunk = 0; chunk < chunks; chunk++) {
      const int64_t begin = share.row_begin + task_begin(all_rows, (int32_t)chunk, (int32_t)chunks);
      const int64_t rows = share.row_begin + task_begin(all_rows, (int32_t)chunk + 1, (int32_t)chunks) - begin;
      float *c = g->c ? g->c + begin * g->c_stride + column : NULL;
      uint16_t *rounded = g->rounded ? g->rounded + begin * g->rounded_stride + column : NULL;
      panel_of(g, rows, panel * INGOT_PANEL, (const float *)g->a + begin * g->a_stride, sums);
      if (gated)
        gated_columns(g, column, rows, 1, sums, INGOT_PANEL, c, rounded);
      else
        epilogue_apply(&epilogue, begin, column, rows, columns, sums, INGOT_PANEL, c, g->c_stride);
    }
  }
}

/* sums[rows, 32] of one panel. */
static inline __attribute__((always_inline)) void decoded_sums(const gemm_args *g, int64_t rows, const int bits,
                                                               const int zeros, const int span, const int scale,
                                                               int64_t column, const float *a, float *sums) {
  const int64_t blocks = (g->k + INGOT_QUANT_BLOCK - 1) / INGOT_QUANT_BLOCK;
  const int64_t panel_bytes = quant_bytes(blocks, bits, zeros, span, scale);
  const uint8_t *panel = (const uint8_t *)g->b + column / INGOT_PANEL * panel_bytes;
  if (DECODED_FEW && rows == 1)
    decoded_few(g, 1, bits, zeros, span, scale, a, panel, sums);
  else if (DECODED_FEW && rows == 2)
    decoded_few(g, 2, bits, zeros, span, scale, a, panel, sums);
  else if (DECODED_FEW && rows == 3)
    decoded_few(g, 3, bits, zeros, span, scale, a, panel, sums);
  else if (DECODED_FEW && rows == 4)
    decoded_few(g, 4, bits, zeros, span, scale, a, panel, sums);
  else
    decoded_many(g, rows, bits, zeros, span, scale, a, panel, sums);
}

#define GEMM_DECODED(name, ...)                                                                                        \
  static void K(name##_panel)(const gemm_args *g, int64_t rows, int64_t column, const float *a, float *sums) {         \
    decoded_sums(g, rows, __VA_ARGS__, column, a, sums);                                                               \
  }                                                                                                                    \
  static void K(name##_across)(const gemm_args *g, int64_t rows, int64_t column, const float *a, float *sums) {        \
    decoded_transposed(g, rows, __VA_ARGS__, column, a, sums);                                                         \
  }                                                                                                                    \
  void K(name##_packed)(const void *args, int32_t task, int32_t num_tasks) {                                           \
    gemm_decoded(args, K(name##_panel), 0, task, num_tasks);                                                           \
  }                                                                                                                    \
  void K(name##_gated)(const void *args, int32_t task, int32_t num_tasks) {                                            \
    gemm_decoded(args, K(name##_panel), 1, task, num_tasks);                                                           \
  }                                                                                                                    \
  void K(name##_transposed)(const void *args, int32_t task, int32_t num_tasks) {                                       \
    gemm_decoded(args, K(name##_across), 0, task, num_tasks);                                                          \
  }

#define QUANT_FORMAT(name, ...)                                                                                        \
  GEMM_DECODED(gemm_f32_##name, __VA_ARGS__, QUANT_F16)                                                                \
  GEMM_DECODED(gemm_f32_##name##_f32, __VA_ARGS__, QUANT_F32)
#define QUANT_ROW_FORMAT(name, ...) GEMM_DECODED(gemm_f32_##name, __VA_ARGS__, QUANT_F16)
#include "weight_formats.def"

#undef DECODED_FEW
#undef DECODED_ROWS
#undef GEMM_DECODED
