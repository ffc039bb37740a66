/* pack_quant.c: pack quantized matrices into panels, with the scales of each block of 32 elements after its values. */
#include <string.h>

#include "quant/quant.h"
#include "elementwise/transpose.h"

/* Values of four bits, two in a byte, as quads of a panel, whose upper halves are the elements 16 further on. */
static inline void pack_quant_of_pairs(const uint8_t *src, int64_t count, uint32_t *quads) {
  uint64_t low, high;
  uint8_t some[INGOT_QUANT_BLOCK / 2] = {0};
  if (count < INGOT_QUANT_BLOCK) src = memcpy(some, src, (size_t)count / 2);
  memcpy(&low, src, 8);
  memcpy(&high, src + 8, 8);
  INGOT_UNROLL for (int q = 0; q < 4; q++) {
    uint64_t both = (low >> 16 * q & 0xffff) | (high >> 16 * q & 0xffff) << 32;
    both = (both | both << 8) & 0x00ff00ff00ff00ff;
    both = (both | both << 4) & 0x0f0f0f0f0f0f0f0f;
    quads[q] = (uint32_t)both | (uint32_t)(both >> 32) << 4;
  }
}

/* The same for values in a byte each. `bits` is a constant at every call. */
static inline __attribute__((always_inline)) void pack_quant_of_bytes(const uint8_t *src, int64_t count,
                                                                      int64_t k_stride, const int bits,
                                                                      uint32_t *quads) {
  uint32_t bytes[INGOT_QUANT_BLOCK / 4] = {0};
  if (k_stride == 1 && count == INGOT_QUANT_BLOCK)
    memcpy(bytes, src, INGOT_QUANT_BLOCK);
  else
    for (int64_t i = 0; i < count; i++) ((uint8_t *)bytes)[i] = src[i * k_stride];
  INGOT_UNROLL for (int q = 0; q < bits; q++) {
    quads[q] = bits == 8 ? bytes[q] : (bytes[q] & 0x0f0f0f0f) | (bytes[(q + 4) % 8] & 0x0f0f0f0f) << 4;
  }
}

/* A matrix, its scales and its zero points. */
typedef struct { const uint8_t *qweight, *scales, *zeros; } pack_quant_source;

#define PACK_FOUR 4 /* columns that are packed together */
#define PACK_NEAR 4 /* blocks that are packed for these columns */
typedef uint8_t pack_quant_row __attribute__((vector_size(4 * PACK_FOUR)));
typedef uint32_t pack_words __attribute__((vector_size(4 * PACK_FOUR)));

/* Store word q of each of four columns to row q of a block. */
static inline void pack_quant_transposed(const pack_words *w, uint8_t *block) {
  const pack_words low = PICK(pack_words, w[0], w[1], 0, 4, 1, 5), high = PICK(pack_words, w[0], w[1], 2, 6, 3, 7);
  const pack_words low2 = PICK(pack_words, w[2], w[3], 0, 4, 1, 5), high2 = PICK(pack_words, w[2], w[3], 2, 6, 3, 7);
  const pack_words rows[] = {
    PICK(pack_words, low, low2, 0, 1, 4, 5), PICK(pack_words, low, low2, 2, 3, 6, 7),
    PICK(pack_words, high, high2, 0, 1, 4, 5), PICK(pack_words, high, high2, 2, 3, 6, 7)};
  INGOT_UNROLL for (int q = 0; q < 4; q++) memcpy(block + 4 * q * INGOT_PANEL, &rows[q], sizeof rows[q]);
}

/* A whole block of four columns, `stride` bytes apart: 4-bit values two in a byte, or bytes. */
static inline __attribute__((always_inline)) void pack_quant_four(const uint8_t *qweight, int64_t stride,
                                                                  const int bits, uint32_t flip, uint8_t *block) {
  INGOT_UNROLL for (int half = 0; half < bits / 4; half++) {
    pack_words w[PACK_FOUR];
    INGOT_UNROLL for (int i = 0; i < PACK_FOUR; i++) {
      pack_quant_row both;
      memcpy(&both, qweight + i * stride + 16 * half, sizeof both);
      if (bits == 8) {
        w[i] = (pack_words)both ^ flip;
        continue;
      }
      const pack_quant_row even = both & 15, odd = both >> 4;
      const pack_words first = (pack_words)PICK(pack_quant_row, even, odd, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6,
                                                22, 7, 23);
      const pack_words last = (pack_words)PICK(pack_quant_row, even, odd, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29,
                                               14, 30, 15, 31);
      w[i] = (first | last << 4) ^ flip;
    }
    pack_quant_transposed(w, block + 16 * half * INGOT_PANEL);
  }
}

/* The values from row k on of `columns` columns of a matrix, to their position in the block of a panel. */
static inline __attribute__((always_inline)) void pack_quant_block(const pack_args *g, const uint8_t *qweight,
                                                                   const int bits, int64_t k, int64_t columns,
                                                                   uint8_t *block) {
  const int64_t left = g->k - k, count = left < INGOT_QUANT_BLOCK ? left : INGOT_QUANT_BLOCK;
  const int64_t stride = g->n_stride, at = bits == 4 && g->pairs ? k / 2 : k * g->k_stride;
  const int are_near = count == INGOT_QUANT_BLOCK && (bits == 4 ? g->pairs : g->k_stride == 1);
  const uint32_t flip = (bits == 4 ? 0x11111111u : 0x01010101u) * (uint32_t)g->flip;
  qweight += at;
  if (are_near && columns == PACK_FOUR) {
    pack_quant_four(qweight, stride, bits, flip, block);
    return;
  }
  for (int64_t j = 0; j < columns; j++, block += 4) {
    uint32_t quads[INGOT_QUANT_BLOCK / 4];
    if (bits == 4 && g->pairs)
      pack_quant_of_pairs(qweight + j * stride, count, quads);
    else
      pack_quant_of_bytes(qweight + j * stride, count, g->k_stride, bits, quads);
    INGOT_UNROLL for (int q = 0; q < bits; q++) {
      const uint32_t four = quads[q] ^ flip;
      memcpy(block + 4 * q * INGOT_PANEL, &four, 4);
    }
  }
}

/* The scales of such columns, and their zero points after those of all columns, for the group of row k. */
static inline __attribute__((always_inline)) void pack_quant_scales(const pack_args *g, const pack_quant_source *src,
                                                                    const int bits, const int scale, int64_t k,
                                                                    int64_t begin, int64_t end, int64_t column,
                                                                    uint8_t *qparams) {
  const int64_t stride = g->scale_n_stride, at = k / g->group * g->scale_k_stride;
  const int32_t flip = g->flip;
  uint8_t *zeros = qparams + scale * INGOT_PANEL;
  for (int64_t j = begin; j < end; j++, column++) {
    memcpy(qparams + scale * column, src->scales + scale * (at + j * stride), (size_t)scale);
    if (src->zeros) zeros[column] = (uint8_t)((src->zeros[at + j * stride] ^ flip) << (8 - bits));
  }
}

/* Columns [begin, end) of a matrix, to a panel from one of its columns on. Several blocks of four columns are packed
 * before the next columns, because the lines of all columns may not fit the cache together. */
static inline __attribute__((always_inline)) void pack_quant_columns(const pack_args *g, const pack_quant_source *src,
                                                                     const int bits, const int zeros, const int span,
                                                                     const int scale, int64_t begin, int64_t end,
                                                                     int64_t column, uint8_t *panel) {
  const quant_sizes sizes = quant_sizes_by(bits, zeros, span, scale);
  const int64_t blocks = (g->k + INGOT_QUANT_BLOCK - 1) / INGOT_QUANT_BLOCK;
  for (int64_t first = 0; first < blocks; first += PACK_NEAR) {
    const int64_t last = first + PACK_NEAR < blocks ? first + PACK_NEAR : blocks;
    for (int64_t j = begin; j < end; j += PACK_FOUR) {
      const int64_t columns = end - j < PACK_FOUR ? end - j : PACK_FOUR;
      for (int64_t i = first; i < last; i++)
        pack_quant_block(g, src->qweight + j * g->n_stride, bits, i * INGOT_QUANT_BLOCK, columns,
                         panel + quant_begin(sizes, i) + 4 * (column + j - begin));
    }
  }
  for (int64_t i = 0; i < blocks; i += span)
    pack_quant_scales(g, src, bits, scale, i * INGOT_QUANT_BLOCK, begin, end, column,
                      panel + quant_shared(sizes, i, blocks));
}

static inline __attribute__((always_inline)) void pack_quant(const pack_args *g, const int bits, const int zeros,
                                                             const int span, const int scale, int32_t task,
                                                             int32_t num_tasks) {
  const int64_t width = g->second ? INGOT_PANEL / 2 : INGOT_PANEL; /* columns of a matrix in a panel */
  const int64_t blocks = (g->k + INGOT_QUANT_BLOCK - 1) / INGOT_QUANT_BLOCK;
  const int64_t panels = (g->n + width - 1) / width, panel_bytes = quant_bytes(blocks, bits, zeros, span, scale);
  const int64_t last = task_begin(panels, task + 1, num_tasks);
  const pack_quant_source halves[2] = {{g->src, g->scales, zeros ? g->zeros : NULL},
                                       {g->second, g->second_scales, zeros ? g->second_zeros : NULL}};
  for (int64_t i = task_begin(panels, task, num_tasks); i < last; i++) {
    uint8_t *panel = (uint8_t *)g->dst + i * panel_bytes;
    const int64_t begin = i * width, end = g->n - begin < width ? g->n : begin + width;
    if (end - begin < width) memset(panel, 0, (size_t)panel_bytes);
    for (int h = 0; h < (g->second ? 2 : 1); h++)
      pack_quant_columns(g, &halves[h], bits, zeros, span, scale, begin, end, h * width, panel);
  }
}

#define PACK_QUANT(name, ...)                                                                                          \
  void K(name)(const void *args, int32_t task, int32_t num_tasks) {                                                    \
    pack_quant(args, __VA_ARGS__, task, num_tasks);                                                                    \
  }

#define QUANT_FORMAT(name, ...)                                                                                        \
  PACK_QUANT(pack_##name, __VA_ARGS__, QUANT_F16)                                                                      \
  PACK_QUANT(pack_##name##_f32, __VA_ARGS__, QUANT_F32)
#define QUANT_ROW_FORMAT(name, ...) PACK_QUANT(pack_##name, __VA_ARGS__, QUANT_F16)
#include "weight_formats.def"

#undef PACK_QUANT
