/* pack.c: pack matrices into panels of 32 columns, [ceil(n / 32)][k][32], zero-padded; bf16 as [ceil(k / 2)][32][2],
 * f16 with an even k. The source may have any alignment, as a weight inside a protobuf message has. */
#include <string.h>

#include "gemm/gemm.h"
#include "elementwise/transpose.h"

typedef float pack8 __attribute__((vector_size(32)));
typedef float pack8_unaligned __attribute__((vector_size(32), aligned(1), may_alias));
typedef float pack1_unaligned __attribute__((aligned(1), may_alias));

typedef int32_t pack8_lanes __attribute__((vector_size(32)));

/* to[i * 32 + j] = r[j][i] for i, j < 8. */
static inline void pack_transpose8(pack8 r[8], float *to) {
  TRANSPOSE8(pack8, pack8_lanes, r);
  INGOT_UNROLL for (int i = 0; i < 8; i++) *(pack8_unaligned *)(to + i * INGOT_PANEL) = r[i];
}

/* Rows of src become rows of the panel; the panel's columns from `width` on belong to another matrix. */
static inline void pack_rows(const float *src, int64_t k, int64_t n, int64_t k_stride, float scale, float *panel,
                             int64_t width) {
  const vf factor = v_set(scale);
  for (int64_t i = 0; i < k; i++) {
    const float *from = src + i * k_stride;
    for (int64_t j = 0; j < width; j += 16) {
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

/* Columns of src become the first n columns of the panel; whole rows of it are `width` columns. */
static inline void pack_columns(const float *src, int64_t k, int64_t n, int64_t k_stride, int64_t n_stride,
                                float scale, float *panel, int64_t width) {
  if (n_stride == 1) {
    pack_rows(src, k, n, k_stride, scale, panel, width);
    return;
  }
  const int64_t k_whole = k_stride == 1 ? k / 8 * 8 : 0;
  const int64_t n_whole = k_stride == 1 ? n / 8 * 8 : 0;
  for (int64_t j = 0; j < n_whole; j += 8) {
    for (int64_t i = 0; i < k_whole; i += 8) {
      pack8 r[8];
      INGOT_UNROLL for (int c = 0; c < 8; c++)
        r[c] = *(const pack8_unaligned *)(src + i + (j + c) * n_stride) * scale;
      pack_transpose8(r, panel + i * INGOT_PANEL + j);
    }
  }
  for (int64_t i = 0; i < k; i++) {
    for (int64_t j = i < k_whole ? n_whole : 0; j < n; j++)
      panel[i * INGOT_PANEL + j] = scale * *(const pack1_unaligned *)(src + i * k_stride + j * n_stride);
  }
}

void K(pack_panel)(const float *src, int64_t k, int64_t n, int64_t k_stride, int64_t n_stride,
                   float scale, float *panel) {
  if (n_stride != 1 && n < INGOT_PANEL) {
    for (int64_t i = 0; i < k * INGOT_PANEL; i += 16) v_store(panel + i, v_set(0.0f));
  }
  pack_columns(src, k, n, k_stride, n_stride, scale, panel, INGOT_PANEL);
}

void K(pack_f32)(const void *args, int32_t task, int32_t num_tasks) {
  const pack_args *g = args;
  const int64_t width = g->second ? INGOT_PANEL / 2 : INGOT_PANEL; /* columns of a matrix in a panel */
  const int64_t panels = (g->n + width - 1) / width;
  const int64_t end = task_begin(panels, task + 1, num_tasks);
  for (int64_t i = task_begin(panels, task, num_tasks); i < end; i++) {
    const int64_t column = i * width;
    const int64_t columns = g->n - column < width ? g->n - column : width;
    const float *src = (const float *)g->src + column * g->n_stride;
    float *panel = (float *)g->dst + i * INGOT_PANEL * g->k;
    if (!g->second) {
      K(pack_panel)(src, g->k, columns, g->k_stride, g->n_stride, g->scale, panel);
      continue;
    }
    const float *second = (const float *)g->second + column * g->n_stride;
    pack_columns(src, g->k, width, g->k_stride, g->n_stride, g->scale, panel, width);
    pack_columns(second, g->k, width, g->k_stride, g->n_stride, g->scale, panel + width, width);
  }
}

/* Pairs of bf16 rows: the first n / 16 * 16 of their columns. */
static inline void pack_bf16_rows(const char *src, int64_t k, int64_t n, int64_t k_bytes, uint16_t *panel) {
  const vi low = vi_set(0xffff);
  for (int64_t i = 0; i + 2 <= k; i += 2) {
    for (int64_t j = 0; j + 16 <= n; j += 16) {
      uint16_t rows[2][16];
      for (int row = 0; row < 2; row++) memcpy(rows[row], src + (i + row) * k_bytes + 2 * j, sizeof rows[row]);
      const vi first = vi_and(vi_sar(v_bits(v_load_bf16(rows[0])), 16), low), second = v_bits(v_load_bf16(rows[1]));
      const vf pairs = v_from_bits(vi_add(second, first));
      memcpy(panel + (i / 2 * INGOT_PANEL + j) * 2, &pairs, sizeof pairs);
    }
  }
}

/* Columns of bf16 become the first n columns of the panel. Where the elements of a column are adjacent, their pairs are
 * transposed as floats are. */
static inline void pack_bf16_columns(const char *src, int64_t k, int64_t n, int64_t k_bytes, int64_t n_bytes,
                                     uint16_t *panel) {
  const int64_t pairs_whole = k_bytes == 2 ? k / 16 * 8 : 0, n_whole = k_bytes == 2 ? n / 8 * 8 : 0;
  for (int64_t j = 0; j < n_whole; j += 8) {
    for (int64_t i = 0; i < pairs_whole; i += 8) {
      pack8 r[8];
      INGOT_UNROLL for (int c = 0; c < 8; c++) r[c] = *(const pack8_unaligned *)(src + 4 * i + (j + c) * n_bytes);
      pack_transpose8(r, (float *)panel + i * INGOT_PANEL + j);
    }
  }
  if (n_bytes == 2) pack_bf16_rows(src, k, n, k_bytes, panel);
  for (int64_t i = 0; i < k; i++) {
    const int64_t done = n_bytes == 2 && i < k / 2 * 2 ? n / 16 * 16 : i < 2 * pairs_whole ? n_whole : 0;
    for (int64_t j = done; j < n; j++)
      memcpy(panel + (i / 2 * INGOT_PANEL + j) * 2 + i % 2, src + i * k_bytes + j * n_bytes, 2);
  }
}

void K(pack_pairs)(const uint16_t *src, int64_t k, int64_t n, int64_t k_stride, int64_t n_stride,
                   float *panel) {
  if (n < INGOT_PANEL || k % 2) memset(panel, 0, (size_t)((k + 1) / 2 * INGOT_PANEL) * sizeof *panel);
  pack_bf16_columns((const char *)src, k, n, 2 * k_stride, 2 * n_stride, (uint16_t *)(void *)panel);
}

void K(pack_bf16)(const void *args, int32_t task, int32_t num_tasks) {
  const pack_args *g = args;
  const int64_t width = g->second ? INGOT_PANEL / 2 : INGOT_PANEL; /* columns of a matrix in a panel */
  const int64_t panels = (g->n + width - 1) / width, panel_size = (g->k + 1) / 2 * 2 * INGOT_PANEL;
  const int64_t end = task_begin(panels, task + 1, num_tasks);
  for (int64_t i = task_begin(panels, task, num_tasks); i < end; i++) {
    const int64_t column = i * width;
    const int64_t columns = g->n - column < width ? g->n - column : width;
    const int64_t k_bytes = 2 * g->k_stride, n_bytes = 2 * g->n_stride;
    uint16_t *panel = (uint16_t *)g->dst + i * panel_size;
    if (columns < width || g->k % 2) memset(panel, 0, (size_t)panel_size * sizeof *panel);
    pack_bf16_columns((const char *)g->src + column * n_bytes, g->k, columns, k_bytes, n_bytes, panel);
    if (g->second)
      pack_bf16_columns((const char *)g->second + column * n_bytes, g->k, columns, k_bytes, n_bytes, panel + 2 * width);
  }
}

/* Columns of f16 become the first n columns of the panel. */
static inline void pack_f16_columns(const char *src, int64_t k, int64_t n, int64_t k_bytes, int64_t n_bytes,
                                    uint16_t *panel) {
  for (int64_t i = 0; n_bytes == 2 && i < k; i++)
    memcpy(panel + i * INGOT_PANEL, src + i * k_bytes, (size_t)n * sizeof *panel);
  for (int64_t j = 0; n_bytes != 2 && j < n; j++) {
    for (int64_t i = 0; i < k; i++) memcpy(panel + i * INGOT_PANEL + j, src + i * k_bytes + j * n_bytes, sizeof *panel);
  }
}

void K(pack_f16)(const void *args, int32_t task, int32_t num_tasks) {
  const pack_args *g = args;
  const int64_t width = g->second ? INGOT_PANEL / 2 : INGOT_PANEL; /* columns of a matrix in a panel */
  const int64_t panels = (g->n + width - 1) / width, panel_size = (g->k + 1) / 2 * 2 * INGOT_PANEL;
  const int64_t end = task_begin(panels, task + 1, num_tasks), k_bytes = 2 * g->k_stride, n_bytes = 2 * g->n_stride;
  for (int64_t i = task_begin(panels, task, num_tasks); i < end; i++) {
    const int64_t column = i * width, columns = g->n - column < width ? g->n - column : width;
    uint16_t *panel = (uint16_t *)g->dst + i * panel_size;
    if (columns < width || g->k % 2) memset(panel, 0, (size_t)panel_size * sizeof *panel);
    pack_f16_columns((const char *)g->src + column * n_bytes, g->k, columns, k_bytes, n_bytes, panel);
    if (g->second)
      pack_f16_columns((const char *)g->second + column * n_bytes, g->k, columns, k_bytes, n_bytes, panel + width);
  }
}
