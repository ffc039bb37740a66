/* pack_bytes.c: pack matrices of 8-bit integers into panels. */
#include <string.h>

#include "kernel.h"

/* panel[ceil(k / 4)][32][4] of the n columns at src, each byte xored with `flip`; the rest is zeros. */
static inline void pack_bytes_panel(const uint8_t *src, int64_t k, int64_t n, int64_t k_stride, int64_t n_stride,
                                    uint8_t flip, uint8_t *panel) {
  const int64_t quads = (k + 3) / 4;
  if (n < INGOT_PANEL || k % 4) memset(panel, 0, (size_t)(quads * 4 * INGOT_PANEL));
  for (int64_t j = 0; j < n; j++)
    for (int64_t i = 0; i < k; i++)
      panel[(i / 4 * INGOT_PANEL + j) * 4 + i % 4] = src[i * k_stride + j * n_stride] ^ flip;
}

void K(pack_bytes)(const void *args, int32_t task, int32_t num_tasks) {
  const pack_args *g = args;
  const int64_t panels = (g->n + INGOT_PANEL - 1) / INGOT_PANEL, end = task_begin(panels, task + 1, num_tasks);
  for (int64_t i = task_begin(panels, task, num_tasks); i < end; i++) {
    const int64_t column = i * INGOT_PANEL, left = g->n - column;
    const uint8_t *src = (const uint8_t *)g->src + column * g->n_stride;
    uint8_t *panel = (uint8_t *)g->dst + column * ((g->k + 3) / 4 * 4);
    const int64_t columns = left < INGOT_PANEL ? left : INGOT_PANEL;
    pack_bytes_panel(src, g->k, columns, g->k_stride, g->n_stride, (uint8_t)g->flip, panel);
  }
}
