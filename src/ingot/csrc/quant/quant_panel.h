/* quant_panel.h: products of some quantized rows with one panel of quantized weights: a slice of the panel, as long as
 * a group of the rows, is multiplied with all rows at hand before the next slice, while their sums are held. */
#ifndef INGOT_QUANT_PANEL_H
#define INGOT_QUANT_PANEL_H

#include <string.h>

#include "quant/blocks.h"

typedef void (*quant_rows)(int64_t rows, const quant_slice *s);

/* How panels are read: by a tile of up to `rows` rows, or, where rows fill several tiles and there is `open`, unpacked
 * once for all of them. many: replaces tiles where there are enough rows, or null. */
typedef struct {
  quant_rows tile;
  void (*open)(const quant_slice *s, blocks_opened *o);
  quant_rows opened, many;
  int64_t rows;
} quant_way;

#define QUANT_WAY(tile, open, opened) {QUANT_BEST(tile), open, opened, QUANT_MANY(tile), QUANT_ROWS}

/* Choose the tile functions for so many rows of bytes, with `span` blocks that share a scale. */
static inline quant_way quant_way_for(quant_way way, int span, int64_t rows) {
  if (span > QUANT_BLOCKS) way.rows = QUANT_TALL;
  if (way.many && rows >= AMX_ROWS) return (quant_way){way.many, NULL, NULL, way.many, INGOT_QUANT_ROWS};
  way.many = NULL;
  return way;
}

#define QUANT_LEFT (INGOT_QUANT_BLOCK / 4) /* the most quads of a block that do not fill a tile */

/* Some of the tiles that rows are divided into evenly, in units of `grain`; a row of floats counts as many rows of
 * bytes as it has limbs. */
typedef struct { int64_t rows, grain, tiles, begin, end, limbs; } quant_share;

static inline int64_t quant_row_at(const quant_share *s, int64_t tile) {
  return task_begin_grain(s->rows, s->grain, (int32_t)tile, (int32_t)s->tiles) * s->limbs;
}

/* With AMX, rows are divided in units that fill a tile. */
static inline int64_t quant_grain(quant_way way) { return way.many ? AMX_ROWS : 1; }

/* sums[rows, 32] of one panel, for the share's rows; a points to its first row, rows are `stride` bytes apart; sums
 * have a row for each limb. */
static inline void quant_panel(int64_t k, int64_t stride, quant_way way, quant_sizes sizes, const int8_t *a,
                               const quant_share *share, const uint8_t *panel, float *sums) {
  const int64_t a_stride = stride / share->limbs;
  const quant_row row = quant_row_of(k);
  const int summed = quant_summed(sizes.span);
  const int64_t offsets = summed == 1 ? row.offsets : summed == QUANT_WIDE ? row.wide_offsets : row.group_offsets;
  const int64_t first_row = quant_row_at(share, share->begin), tiles = share->end - share->begin;
  const int opens = way.open && tiles > 1;
  const uint8_t *b = panel;
  blocks_opened opened;
  quant_waiting waiting;
  int64_t ends[INGOT_QUANT_ROWS]; /* ends of tiles; each prefetches its share of the next slice, but few rows read on */
  for (int64_t i = 0; i < tiles; i++) ends[i] = quant_row_at(share, share->begin + i + 1) - first_row;
  const int64_t share_bytes = (quant_sized(sizes, QUANT_BLOCKS) / 64 + tiles) / tiles * 64;
  const int64_t prefetch = ends[tiles - 1] > QUANT_ROWS ? share_bytes : 0;
  waiting.tiles = 0;
  if (!way.many || !row.blocks) memset(sums, 0, (size_t)ends[tiles - 1] * INGOT_PANEL * sizeof *sums);
  for (int64_t first = 0; first < row.blocks; first += QUANT_BLOCKS) {
    const int64_t left = row.blocks - first, count = left < QUANT_BLOCKS ? left : QUANT_BLOCKS;
    const int64_t nbytes = quant_begin(sizes, first + count) - quant_begin(sizes, first);
    const uint8_t *shared = panel + quant_shared(sizes, first, row.blocks);
    if (sizes.span > QUANT_BLOCKS && first == 0) __builtin_prefetch(shared, 0, 3); /* it is far from the quantized
                                                                                      values */
    for (int64_t i = 0, begin = 0; i < tiles; i++) {
      const quant_slice slice = {
        .a = a + begin * a_stride, .a_stride = a_stride, .offsets = offsets, .steps = row.steps,
        .halves = row.halves, .wholes = row.wholes, .first = first, .count = count, .b = b, .shared = shared,
        .opened = opens ? &opened : NULL, .prefetch = b + nbytes,
        .prefetch_step = (nbytes / (ends[i] - begin) + 63) / 64 * 64, .sums = sums + begin * INGOT_PANEL,
        .waiting = &waiting};
      if (opens && i == 0) way.open(&slice, &opened);
      if (!way.many) quant_expect(b + nbytes, i * prefetch, (i + 1) * prefetch);
      (opens ? way.opened : way.tile)(ends[i] - begin, &slice);
      begin = ends[i];
    }
    b += nbytes;
  }
  if (waiting.tiles) way.many(0, &(quant_slice){.waiting = &waiting});
}

/* sums[rows, 32] of the three limbs of each row, joined in place. */
static inline void quant_join(int64_t rows, float *sums) {
  for (int64_t i = 0; i < rows; i++) {
    const float *limbs = sums + i * QUANT_LIMBS * INGOT_PANEL;
    for (int64_t j = 0; j < INGOT_PANEL; j += 16) {
      const vf low = v_add(v_load(limbs + INGOT_PANEL + j), v_load(limbs + 2 * INGOT_PANEL + j));
      v_store(sums + i * INGOT_PANEL + j, v_add(v_load(limbs + j), low));
    }
  }
}

#endif
