/* codes_panel.h: products of some rounded rows with one panel of codes: a strip of the panel, as long as a group of the
 * rows, is read by all rows at hand before the next is, while their sums wait. */
#ifndef INGOT_CODES_PANEL_H
#define INGOT_CODES_PANEL_H

#include <string.h>

#include "quant/blocks.h"

typedef void (*codes_rows)(int64_t rows, const codes_strip *s);

/* How panels are read: by a tile of up to `rows` rows, or where rows make several and there is `open`, opened once for
 * all of them. many: what takes the place of tiles where there are rows for it, or null. */
typedef struct {
  codes_rows tile;
  void (*open)(const codes_strip *s, blocks_opened *o);
  codes_rows opened, many;
  int64_t rows;
} codes_way;

#define CODES_WAY(tile, open, opened) {CODES_BEST(tile), open, opened, CODES_MANY(tile), CODES_ROWS}

/* The way for so many rows of bytes and codes of which `span` blocks share a scale. */
static inline codes_way codes_way_for(codes_way way, int span, int64_t rows) {
  if (span > CODES_BLOCKS) way.rows = CODES_TALL;
  if (way.many && rows >= AMX_ROWS) return (codes_way){way.many, NULL, NULL, way.many, INGOT_CODES_ROWS};
  way.many = NULL;
  return way;
}

#define CODES_LEFT (INGOT_CODES_BLOCK / 4) /* fours of a block, as many as a tile does not fill */

/* Some of the tiles that rows are cut into evenly, in units of `grain`; a row of floats is as many of bytes as it has
 * digits. */
typedef struct { int64_t rows, grain, tiles, begin, end, digits; } codes_share;

static inline int64_t codes_row_at(const codes_share *s, int64_t tile) {
  return part_begin_grain(s->rows, s->grain, (int32_t)tile, (int32_t)s->tiles) * s->digits;
}

/* Of rows that fill no tile of AMX, as many are multiplied as do. */
static inline int64_t codes_grain(codes_way way) { return way.many ? AMX_ROWS : 1; }

/* sums[rows, 32] of one panel, those of the share, whose first a points to, `stride` bytes apart; sums have a row for
 * each digit. */
static inline void codes_panel(int64_t k, int64_t stride, codes_way way, codes_sizes sizes, const int8_t *a,
                               const codes_share *share, const uint8_t *panel, float *sums) {
  const int64_t a_stride = stride / share->digits;
  const codes_row row = codes_row_of(k);
  const int summed = codes_summed(sizes.span);
  const int64_t offsets = summed == 1 ? row.offsets : summed == CODES_WIDE ? row.wide_offsets : row.group_offsets;
  const int64_t first_row = codes_row_at(share, share->begin), tiles = share->end - share->begin;
  const int opens = way.open && tiles > 1;
  const uint8_t *b = panel;
  blocks_opened opened;
  codes_waiting waiting;
  int64_t ends[INGOT_CODES_ROWS]; /* of tiles; each asks for its share of the next strip, but few rows read on */
  for (int64_t i = 0; i < tiles; i++) ends[i] = codes_row_at(share, share->begin + i + 1) - first_row;
  const int64_t ahead = ends[tiles - 1] > CODES_ROWS ? (codes_sized(sizes, CODES_BLOCKS) / 64 + tiles) / tiles * 64 : 0;
  waiting.tiles = 0;
  if (!way.many || !row.blocks) memset(sums, 0, (size_t)ends[tiles - 1] * INGOT_PANEL * sizeof *sums);
  for (int64_t first = 0; first < row.blocks; first += CODES_BLOCKS) {
    const int64_t left = row.blocks - first, count = left < CODES_BLOCKS ? left : CODES_BLOCKS;
    const int64_t nbytes = codes_begin(sizes, first + count) - codes_begin(sizes, first);
    const uint8_t *shared = panel + codes_shared(sizes, first, row.blocks);
    if (sizes.span > CODES_BLOCKS && first == 0) __builtin_prefetch(shared, 0, 3); /* it is far from the codes */
    for (int64_t i = 0, begin = 0; i < tiles; i++) {
      const codes_strip strip = {
        .a = a + begin * a_stride, .a_stride = a_stride, .offsets = offsets, .steps = row.steps,
        .halves = row.halves, .wholes = row.wholes, .first = first, .count = count, .b = b, .shared = shared,
        .opened = opens ? &opened : NULL, .ahead = b + nbytes,
        .ahead_step = (nbytes / (ends[i] - begin) + 63) / 64 * 64, .sums = sums + begin * INGOT_PANEL,
        .waiting = &waiting};
      if (opens && i == 0) way.open(&strip, &opened);
      if (!way.many) codes_expect(b + nbytes, i * ahead, (i + 1) * ahead);
      (opens ? way.opened : way.tile)(ends[i] - begin, &strip);
      begin = ends[i];
    }
    b += nbytes;
  }
  if (waiting.tiles) way.many(0, &(codes_strip){.waiting = &waiting});
}

/* sums[rows, 32] of the three digits of each row, in their place. */
static inline void codes_join(int64_t rows, float *sums) {
  for (int64_t i = 0; i < rows; i++) {
    const float *digits = sums + i * CODES_DIGITS * INGOT_PANEL;
    for (int64_t j = 0; j < INGOT_PANEL; j += 16) {
      const vf low = v_add(v_load(digits + INGOT_PANEL + j), v_load(digits + 2 * INGOT_PANEL + j));
      v_store(sums + i * INGOT_PANEL + j, v_add(v_load(digits + j), low));
    }
  }
}

#endif
