/* integer_tile.h: the products of integers of 8 bits of a few rows with a panel, exact on every instruction set. */
#ifndef INGOT_INTEGER_TILE_H
#define INGOT_INTEGER_TILE_H

#include "gemm/amx.h"
#include "quant/integer.h"
#include "quant/integer_dots.h"

/* sums[rows][32] = first[32] + a[rows, 4 quads] of u8 times one panel of i8, [quads][32][4]; all columns of the panel
 * are computed, perhaps with padding. */
typedef struct {
  const uint8_t *a;
  int64_t a_stride;
  const int8_t *b;
  int64_t quads, columns;
  const int32_t *first;
  int32_t *sums;
} integer_product;

/* Array sizes for numbers of rows that no tile has. */
#define INTEGER_SOME(rows) ((rows) <= INTEGER_ROWS ? (rows) : 1)

#define INTEGER_CASE(name, rows)                                                                                       \
  case rows:                                                                                                           \
    if (wide)                                                                                                          \
      K(name##_body)(INTEGER_SOME(rows), 2, p);                                                                        \
    else                                                                                                               \
      K(name##_body)(INTEGER_SOME(rows), 1, p);                                                                        \
    break;

/* name_tile(rows, p): a tile of up to INTEGER_ROWS rows, with two registers a row where columns fill more than one.
 * Products are added by `dot`; attributes: those that `dot` requires. Every third row has a pointer register; the next
 * two rows are addressed from it by the stride. */
#define INTEGER_TILE(name, attributes, dot)                                                                            \
  static inline __attribute__((always_inline)) attributes void K(name##_body)(const int rows, const int width,         \
                                                                              const integer_product *p) {              \
    const uint8_t *third[(INTEGER_ROWS + 2) / 3];                                                                      \
    INGOT_UNROLL for (int i = 0; i < rows; i += 3) third[i / 3] = p->a + i * p->a_stride;                              \
    for (int64_t column = 0; column < p->columns; column += width * INTEGER_LANES) {                                   \
      integer_sums sum[INTEGER_ROWS][2];                                                                               \
      INGOT_UNROLL for (int i = 0; i < rows; i++) {                                                                    \
        INGOT_UNROLL for (int j = 0; j < width; j++)                                                                   \
          sum[i][j] = integer_read(p->first + column + j * INTEGER_LANES);                                             \
      }                                                                                                                \
      const int8_t *b = p->b + 4 * column;                                                                             \
      for (int64_t k = 0; k < 4 * p->quads; k += 4, b += 4 * INGOT_PANEL) {                                            \
        integer_sums w[2];                                                                                             \
        INGOT_UNROLL for (int j = 0; j < width; j++) w[j] = integer_read(b + 4 * j * INTEGER_LANES);                   \
        INGOT_UNROLL for (int i = 0; i < rows; i++) {                                                                  \
          const integer_sums four = integer_spread(third[i / 3] + k + i % 3 * p->a_stride);                            \
          INGOT_UNROLL for (int j = 0; j < width; j++) sum[i][j] = dot(sum[i][j], four, w[j]);                         \
        }                                                                                                              \
      }                                                                                                                \
      INGOT_UNROLL for (int i = 0; i < rows; i++) {                                                                    \
        INGOT_UNROLL for (int j = 0; j < width; j++)                                                                   \
          integer_write(p->sums + i * INGOT_PANEL + column + j * INTEGER_LANES, sum[i][j]);                            \
      }                                                                                                                \
    }                                                                                                                  \
  }                                                                                                                    \
  static attributes void K(name##_tile)(int64_t rows, const integer_product *p) {                                      \
    const int wide = INTEGER_ACROSS > 1 && p->columns > INTEGER_LANES;                                                 \
    switch (rows) {                                                                                                    \
      INTEGER_CASE(name, 12)                                                                                           \
      INTEGER_CASE(name, 11)                                                                                           \
      INTEGER_CASE(name, 10)                                                                                           \
      INTEGER_CASE(name, 9)                                                                                            \
      INTEGER_CASE(name, 8)                                                                                            \
      INTEGER_CASE(name, 7)                                                                                            \
      INTEGER_CASE(name, 6)                                                                                            \
      INTEGER_CASE(name, 5)                                                                                            \
      INTEGER_CASE(name, 4)                                                                                            \
      INTEGER_CASE(name, 3)                                                                                            \
      INTEGER_CASE(name, 2)                                                                                            \
      INTEGER_CASE(name, 1)                                                                                            \
    }                                                                                                                  \
  }

typedef void (*integer_tile)(int64_t rows, const integer_product *p);

INTEGER_TILE(integer_widened, , integer_madd)

/* On AVX-512 only some CPUs have dot products of bytes. */
#if defined(ISA_avx512)
INTEGER_TILE(integer_dots, INTEGER_VNNI, integer_dot)
#define INTEGER_BEST (__builtin_cpu_supports("avx512vnni") ? K(integer_dots_tile) : K(integer_widened_tile))
#else
#define INTEGER_BEST K(integer_widened_tile)
#endif

#if defined(ISA_amx)
#include "quant/integer_tile_amx.h"
#elif defined(ISA_avx2)
#include "quant/integer_tile_avx2.h"
#endif

/* INTEGER_MANY: replaces the tile where a block has AMX_ROWS rows, or null; INTEGER_MOST: the most rows of a block
 * then. */
#if defined(ISA_amx)
#define INTEGER_MOST (AMX_TILES * AMX_ROWS)
#define INTEGER_MANY (AMX_IS_USED ? K(integer_tile_many) : NULL)
#elif defined(ISA_avx2) && !defined(ISA_avx2vnni)
#define INTEGER_MOST INGOT_CONV_PIXELS
#define INTEGER_MANY K(integer_wide_many)
#else
#define INTEGER_MOST INTEGER_ROWS
#define INTEGER_MANY NULL
#endif

/* The tile for few rows, and the replacement for many, or null. */
typedef struct { integer_tile few, many; } integer_tiles;

#define INTEGER_TILES {INTEGER_BEST, INTEGER_MANY}

/* Rows of u8 that are multiplied together, their sums where columns have zero points, and the offsets of results. */
typedef struct {
  const uint8_t *rows;
  int64_t row_stride, count;
  int32_t row_sums[INGOT_CONV_PIXELS];
  integer_place to[INGOT_CONV_PIXELS];
} integer_block;

static inline int32_t integer_row_sum(const uint8_t *row, int64_t k) {
  int32_t sum = 0;
  for (int64_t i = 0; i < k; i++) sum += row[i];
  return sum;
}

/* A panel of `columns` columns of k elements, the first of which is output channel `channel`; the terms added to the
 * sums; and, where not null, the factors by which the sums of rows are multiplied and subtracted. */
typedef struct {
  const int8_t *weight;
  int64_t k, columns, channel;
  const int32_t *added, *zeros;
} integer_panel;

/* The results of a block and a panel. */
static inline void integer_results(integer_tiles t, const integer_store *f, const integer_block *b,
                                   const integer_panel *p, void *out) {
  const int is_many = t.many && b->count >= AMX_ROWS, most = is_many ? INTEGER_MOST : INTEGER_ROWS;
  const int32_t tiles = (int32_t)((b->count + most - 1) / most);
  _Alignas(64) int32_t sums[INGOT_CONV_PIXELS * INGOT_PANEL];
  for (int32_t i = 0; i < tiles; i++) {
    const int64_t begin = task_begin(b->count, i, tiles), rows = task_begin(b->count, i + 1, tiles) - begin;
    const integer_product product = {b->rows + begin * b->row_stride, b->row_stride, p->weight, (p->k + 3) / 4,
                                     p->columns, p->added, sums + begin * INGOT_PANEL};
    (is_many ? t.many : t.few)(rows, &product);
  }
  for (int64_t row = 0; p->zeros && row < b->count; row++) {
    for (int64_t j = 0; j < p->columns; j++) sums[row * INGOT_PANEL + j] -= p->zeros[j] * b->row_sums[row];
  }
  for (int64_t j = 0; j < p->columns; j += 16)
    integer_rows(f, sums + j, INGOT_PANEL, p->channel + j, p->columns - j < 16 ? p->columns - j : 16, b->count, out,
                 b->to);
}

#endif
