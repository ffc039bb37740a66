/* pack.c: matrices into panels of 32 columns, [ceil(n / 32)][k][32], zero-padded. The source may lie at any byte: a
 * weight inside a protobuf message does. */
#include <string.h>

#include "gemm.h"

typedef float pack8 __attribute__((vector_size(32)));
typedef float pack8_unaligned __attribute__((vector_size(32), aligned(1), may_alias));
typedef float pack1_unaligned __attribute__((aligned(1), may_alias));

#if defined(__clang__)
#define PICK(x, y, ...) __builtin_shufflevector(x, y, __VA_ARGS__)
#else
typedef int32_t pack8_indices __attribute__((vector_size(32)));
#define PICK(x, y, ...) __builtin_shuffle(x, y, (pack8_indices){__VA_ARGS__})
#endif

/* to[i * 32 + j] = scale * from[j * stride + i] for i, j < 8: pairs, then quadruples, then halves change places. */
static inline void pack_transpose8(const float *from, int64_t stride, float scale, float *to) {
  pack8 r[8], s[8];
  INGOT_UNROLL for (int i = 0; i < 8; i++) r[i] = *(const pack8_unaligned *)(from + i * stride) * scale;
  INGOT_UNROLL for (int i = 0; i < 8; i += 2) {
    s[i] = PICK(r[i], r[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
    s[i + 1] = PICK(r[i], r[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  }
  INGOT_UNROLL for (int i = 0; i < 8; i++) {
    const int low = i / 4 * 4 + i % 4 / 2; /* s[low], s[low + 2] hold what r[i] takes */
    r[i] = i % 2 == 0 ? PICK(s[low], s[low + 2], 0, 1, 8, 9, 4, 5, 12, 13)
                      : PICK(s[low], s[low + 2], 2, 3, 10, 11, 6, 7, 14, 15);
  }
  INGOT_UNROLL for (int i = 0; i < 4; i++) {
    *(pack8_unaligned *)(to + i * INGOT_PANEL) = PICK(r[i], r[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
    *(pack8_unaligned *)(to + (i + 4) * INGOT_PANEL) = PICK(r[i], r[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
  }
}

/* Rows of src are rows of the panel. */
static inline void pack_rows(const float *src, int64_t k, int64_t n, int64_t k_stride, float scale, float *panel) {
  const vf factor = v_set(scale);
  for (int64_t i = 0; i < k; i++) {
    const float *from = src + i * k_stride;
    for (int64_t j = 0; j < INGOT_PANEL; j += 16) {
      vf v = v_set(0.0f);
      if (n - j >= 16) {
        v = v_load(from + j);
      } else if (n > j) {
        float rest[16] = {0};
        memcpy(rest, from + j, (size_t)(n - j) * sizeof(float));
        v = v_load(rest);
      }
      v_store(panel + i * INGOT_PANEL + j, v_mul(v, factor));
    }
  }
}

void K(pack_panel)(const float *src, int64_t k, int64_t n, int64_t k_stride, int64_t n_stride,
                   float scale, float *panel) {
  if (n_stride == 1) {
    pack_rows(src, k, n, k_stride, scale, panel);
    return;
  }
  if (n < INGOT_PANEL) {
    for (int64_t i = 0; i < k * INGOT_PANEL; i += 16) v_store(panel + i, v_set(0.0f));
  }
  const int64_t k_whole = k_stride == 1 ? k / 8 * 8 : 0;
  const int64_t n_whole = k_stride == 1 ? n / 8 * 8 : 0;
  for (int64_t j = 0; j < n_whole; j += 8) {
    for (int64_t i = 0; i < k_whole; i += 8)
      pack_transpose8(src + i + j * n_stride, n_stride, scale, panel + i * INGOT_PANEL + j);
  }
  for (int64_t i = 0; i < k; i++) {
    for (int64_t j = i < k_whole ? n_whole : 0; j < n; j++)
      panel[i * INGOT_PANEL + j] = scale * *(const pack1_unaligned *)(src + i * k_stride + j * n_stride);
  }
}

void K(pack_f32)(const void *args, int32_t part, int32_t parts) {
  const pack_args *g = args;
  const int64_t panels = (g->n + INGOT_PANEL - 1) / INGOT_PANEL;
  const int64_t end = part_begin(panels, part + 1, parts);
  for (int64_t panel = part_begin(panels, part, parts); panel < end; panel++) {
    const int64_t column = panel * INGOT_PANEL;
    const int64_t columns = g->n - column < INGOT_PANEL ? g->n - column : INGOT_PANEL;
    K(pack_panel)(g->src + column * g->n_stride, g->k, columns, g->k_stride, g->n_stride, g->scale,
                  g->dst + column * g->k);
  }
}

#undef PICK
