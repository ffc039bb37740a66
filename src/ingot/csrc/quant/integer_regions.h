/* integer_regions.h: integer convolutions by AMX without gathered windows. The rows of the image that a region of the
 * result reads are copied once with zero points around them, or read in index, so that the windows of adjacent pixels
 * are evenly spaced, and the next row's windows follow them. The pixels between rows are multiplied too, but their
 * results are discarded. */
#ifndef INGOT_INTEGER_REGIONS_H
#define INGOT_INTEGER_REGIONS_H

#include <math.h>
#include <string.h>

#include "gemm/amx.h"
#include "gemm/gemm.h"
#include "quant/integer_conv.h"

#define REGION_NEAR 1152       /* bytes of a row that are multiplied while a panel's columns stay in the L1 cache */
#define REGION_FEW 64          /* with at most so many rows columns are hardly reused, and shorter pieces are
                                  prefetched more evenly */
#define REGION_SHORT 384       /* bytes of a row in such pieces */
#define REGION_ROWS 128        /* rows whose sums are held where a window has more bytes than that */
#define REGION_BYTES (1 << 18) /* of an image that are read for all panels */
#define REGION_LARGE (1 << 19) /* bytes of a filter that only one task reads */

/* Per group: `channels`, `out_channels`, `panels`. A window spans `span` more rows and `across` more columns than its
 * first. Of the copied rows, every stride_h-th is in the same plane; there are `planes` planes. Every skip-th column is
 * copied; windows of adjacent pixels begin column_step of these, pixel_step bytes, apart. A row of a window, or of a
 * dilated window each kernel position, is a run of `run` bytes; there are `runs` of them, and run_left quads of each
 * fill no tile. width, lines: most output pixels and rows of a region. */
typedef struct {
  const integer_args *g;
  int64_t channels, out_channels, panels;
  int64_t across, span, skip, column_step, pixel_step, planes, width, lines, runs, run, run_left;
  int32_t in_place;
  uint8_t *copied; /* scratch */
} region_task;

/* Output pixels [x, x + width) of rows [y, y + count) of an image; a row has `pitch` positions. a: the group's window
 * at the first. */
typedef struct {
  int64_t image, y, x, count, width, pitch, positions, group;
  const uint8_t *a;
  int64_t offsets[INGOT_TILE_RUNS];
} region;

/* Pieces of rows, `runs` of `k` bytes each at offsets[run] bytes from a, times as many bytes of a panel's columns.
 * first: a tile's rows of the added terms, or null to add to the sums of earlier pieces. prefetch: memory that is read
 * afterwards; prefetch_step bytes of it are prefetched with each column tile. */
typedef struct {
  int64_t runs, k;
  const int64_t *offsets;
  const uint8_t *a; int64_t a_stride;
  const int8_t *b;
  const int32_t *first;
  const char *prefetch; int64_t prefetch_step;
} region_product;

/* sums[rows][32] of up to two row tiles, which may overlap. both, wide: whether there are two row tiles, and two column
 * tiles; constants. */
static inline __attribute__((always_inline)) void region_tiles(const int both, const int wide, int64_t rows,
                                                               const region_product *p, int32_t *sums) {
  const int64_t second = both ? rows - AMX_ROWS : 0, step = 4 * AMX_QUADS;
  const int32_t *from = p->first ? p->first : sums, *below = p->first ? p->first : sums + second * INGOT_PANEL;
  const int8_t *b = p->b;
  const char *prefetch = p->prefetch;
  AMX_LOAD(0, from, 4 * INGOT_PANEL);
  if (wide) AMX_LOAD(1, from + AMX_QUADS, 4 * INGOT_PANEL);
  if (both) AMX_LOAD(2, below, 4 * INGOT_PANEL);
  if (both && wide) AMX_LOAD(3, below + AMX_QUADS, 4 * INGOT_PANEL);
  for (int64_t run = 0; run < p->runs; run++) {
    const uint8_t *a = p->a + p->offsets[run], *other = a + second * p->a_stride;
    int64_t k = 0;
    for (; k + step <= p->k; k += step, b += step * INGOT_PANEL) {
      for (int64_t i = 0; i < p->prefetch_step; i += 64, prefetch += 64) __builtin_prefetch(prefetch, 0, 2);
      AMX_SQUARE(tdpbusd, both, wide, a + k, other + k, p->a_stride, b, 4, 5);
    }
    if (k < p->k) AMX_SQUARE(tdpbusd, both, wide, a + k, other + k, p->a_stride, b, 6, 7);
    b += (p->k - k + 3) / 4 * 4 * INGOT_PANEL;
  }
  AMX_STORE(0, sums, 4 * INGOT_PANEL);
  if (wide) AMX_STORE(1, sums + AMX_QUADS, 4 * INGOT_PANEL);
  if (both) AMX_STORE(2, sums + second * INGOT_PANEL, 4 * INGOT_PANEL);
  if (both && wide) AMX_STORE(3, sums + second * INGOT_PANEL + AMX_QUADS, 4 * INGOT_PANEL);
}

static inline void region_sums(int64_t rows, int64_t columns, const region_product *p, int32_t *sums) {
  if (rows <= AMX_ROWS && columns <= AMX_QUADS)
    region_tiles(0, 0, rows, p, sums);
  else if (rows <= AMX_ROWS)
    region_tiles(0, 1, rows, p, sums);
  else if (columns <= AMX_QUADS)
    region_tiles(1, 0, rows, p, sums);
  else
    region_tiles(1, 1, rows, p, sums);
}

/* `count` pixels of the group as u8, adjacent. */
static inline void region_pixels(const region_task *t, const uint8_t *from, int64_t count, uint8_t *to) {
  const int64_t step = t->skip * t->g->x_strides[2], unit = t->channels;
  const uint8_t flip = (uint8_t)t->g->x_flip;
  if (step == unit)
    memcpy(to, from, (size_t)(count * unit));
  else
    for (int64_t i = 0; i < count; i++) memcpy(to + i * unit, from + i * step, (size_t)unit);
  for (int64_t i = 0; flip && i < count * unit; i++) to[i] ^= flip;
}

/* Copy all rows that a region reads. */
static inline void region_copy(const region_task *t, region *r) {
  const integer_args *g = t->g;
  const int64_t columns = r->pitch * t->column_step, unit = t->channels, line_bytes = columns * unit;
  const int64_t top = r->y * g->stride_h - g->pad_top, left = r->x * g->stride_w - g->pad_left;
  const int64_t depth = r->count + t->span / g->stride_h;
  const uint8_t *image = (const uint8_t *)g->x + r->image * g->x_strides[0] + r->group * unit;
  const int32_t zero = integer_zero(g, r->image);
  /* Columns of the copy that are inside the image. */
  int64_t first = left < 0 ? (-left + t->skip - 1) / t->skip : 0;
  int64_t last = left < g->width ? (g->width - 1 - left) / t->skip + 1 : 0;
  last = last < columns ? last : columns;
  first = first < last ? first : last;
  for (int64_t i = 0; i <= (r->count - 1) * g->stride_h + t->span; i++) {
    const int64_t plane = i % g->stride_h, line = top + i;
    if (plane >= t->planes) continue;
    uint8_t *to = t->copied + (plane * depth + i / g->stride_h) * line_bytes;
    if (line < 0 || line >= g->height || first == last) {
      memset(to, zero, (size_t)line_bytes);
      continue;
    }
    memset(to, zero, (size_t)(first * unit));
    region_pixels(t, image + line * g->x_strides[1] + (left + first * t->skip) * g->x_strides[2], last - first,
                  to + first * unit);
    memset(to + last * unit, zero, (size_t)((columns - last) * unit));
  }
  for (int64_t i = 0, run = 0; i < g->kernel_h; i++) {
    const int64_t line = i * g->dilation_h, taps = t->runs / g->kernel_h;
    for (int64_t j = 0; j < taps; j++)
      r->offsets[run++] = (line % g->stride_h * depth + line / g->stride_h) * line_bytes + j * g->dilation_w * unit;
  }
  r->a = t->copied;
}

/* Kinds of residual that are added before clipping. */
#define REGION_NONE 0
#define REGION_QUANT 1
#define REGION_FLOATS 2

/* The parameters of a panel's columns, up to 32. is_vectorized: whether the epilogue is only a scale, a shift, a
 * residual and bounds; is_bound: whether saturation to the integer type implies these bounds. */
typedef struct {
  integer_columns columns[2];
  int64_t channel, count;
  int32_t residual, is_vectorized, is_bound;
} region_panel;

static inline region_panel region_panel_at(const integer_store *f, int64_t channel, int64_t count) {
  const int32_t floats = f->residual_type == INGOT_INTEGER_F32 ? REGION_FLOATS : REGION_QUANT;
  region_panel p = {.channel = channel, .count = count, .residual = f->residual ? floats : REGION_NONE};
  const int is_quantized = integer_bytes(f->result) == 1, is_i8 = f->residual_type == INGOT_INTEGER_I8;
  const int is_clipped = f->activation == INGOT_ACT_none || f->activation == INGOT_ACT_relu ||
                         f->activation == INGOT_ACT_clip;
  if ((count < INGOT_PANEL && !is_quantized) || f->result == INGOT_INTEGER_I32 || !is_clipped || f->low != f->low ||
      f->high != f->high || f->step != 1.0f || f->middle_scale != 0.0f || (is_quantized && f->out_scale != 1.0f) ||
      (f->residual && (!f->residual_first || is_i8)) || f->residual_scale * 0.0f != 0.0f)
    return p;
  p.is_vectorized = 1;
  p.is_bound = is_quantized && p.residual != REGION_FLOATS;
  for (int i = 0; 16 * i < count; i++) {
    p.columns[i] = integer_columns_at(f, channel + 16 * i, count - 16 * i < 16 ? count - 16 * i : 16);
    const vm large = v_lt(v_set(0.25f), v_abs(p.columns[i].scale));
    const vm far = v_lt(v_set(0x1p28f), v_abs(p.columns[i].shift));
    p.is_vectorized = p.is_vectorized && (p.columns[i].finite || !is_quantized);
    p.is_bound = p.is_bound && !v_any(large) && !v_any(far);
  }
  /* Numbers below 2^31 are converted to integers before they are clipped. */
  const float least = (f->result == INGOT_INTEGER_U8 ? 0.0f : -128.0f) - f->out_zero;
  p.is_bound = p.is_bound && f->low == least && f->high == least + 255.0f && fabsf(f->residual_scale) < 0x1p18f;
  return p;
}

/* Up to 16 result columns of a position, before rounding to integers. residual, is_bound, and whole, for 16 columns:
 * constants. */
static inline __attribute__((always_inline)) vf region_value(const int residual, const int is_bound, const int whole,
                                                             const integer_store *f, const integer_columns *c,
                                                             const int32_t *sums, int64_t at) {
  const vm lanes = (vm)(0xffffu >> (16 - c->lanes));
  vf v = v_add(v_mul(v_from_int(_mm512_load_si512(sums)), c->scale), c->shift);
  if (residual == REGION_FLOATS) {
    const float *from = (const float *)f->residual + at + c->channel;
    v = v_add(v, whole ? v_load(from) : _mm512_maskz_loadu_ps(lanes, from));
  }
  if (residual == REGION_QUANT) {
    const uint8_t *from = (const uint8_t *)f->residual + at + c->channel;
    const __m128i bytes = whole ? _mm_loadu_si128((const __m128i *)from) : _mm_maskz_loadu_epi8(lanes, from);
    const vf values = v_from_int(_mm512_cvtepu8_epi32(bytes));
    v = v_add(v, v_mul(v_sub(values, v_set(f->residual_zero)), v_set(f->residual_scale)));
  }
  return is_bound ? v : v_min(v_set(f->high), v_max(v_set(f->low), v));
}

/* The same as integers minus the zero point; NaN as 0. */
static inline __attribute__((always_inline)) vi region_rounded(const int residual, const int is_bound, const int whole,
                                                            const integer_store *f, const integer_columns *c,
                                                            const int32_t *sums, int64_t at) {
  const vf v = region_value(residual, is_bound, whole, f, c, sums, at);
  return residual == REGION_FLOATS ? _mm512_maskz_cvtps_epi32(_mm512_cmp_ps_mask(v, v, _CMP_ORD_Q), v)
                                   : _mm512_cvtps_epi32(v);
}

/* Adjacent positions: the distance between them, in elements of results and residuals. */
typedef struct { int64_t count, out, residual, out_step, residual_step; } region_row;

static inline __attribute__((always_inline)) void region_quant(const int is_u8, const int residual, const int is_bound,
                                                               const integer_store *f, const region_panel *p,
                                                               const region_row r, const int32_t *sums, uint8_t *out) {
  const __m512i order = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
  const __m512i zero = _mm512_set1_epi16((int16_t)f->out_zero);
  const integer_columns low = p->columns[0], high = p->columns[1];
  out += r.out + p->channel;
  for (int64_t i = 0; i < r.count; i += 2) {
    const int64_t j = i + 1 < r.count ? i + 1 : i;
    const int32_t *a = sums + i * INGOT_PANEL, *b = sums + j * INGOT_PANEL;
    const int64_t at = r.residual + i * r.residual_step, next = r.residual + j * r.residual_step;
    const vi a0 = region_rounded(residual, is_bound, 1, f, &low, a, at);
    const vi a1 = region_rounded(residual, is_bound, 1, f, &high, a + 16, at);
    const vi b0 = region_rounded(residual, is_bound, 1, f, &low, b, next);
    const vi b1 = region_rounded(residual, is_bound, 1, f, &high, b + 16, next);
    const __m512i first = _mm512_adds_epi16(_mm512_packs_epi32(a0, a1), zero);
    const __m512i second = _mm512_adds_epi16(_mm512_packs_epi32(b0, b1), zero);
    const __m512i bytes = is_u8 ? _mm512_packus_epi16(first, second) : _mm512_packs_epi16(first, second);
    const __m512i values = _mm512_permutexvar_epi32(order, bytes);
    _mm256_storeu_si256((__m256i *)(out + i * r.out_step), _mm512_castsi512_si256(values));
    _mm256_storeu_si256((__m256i *)(out + j * r.out_step), _mm512_extracti64x4_epi64(values, 1));
  }
}

/* The same for less than 32 columns. */
static inline __attribute__((always_inline)) void region_some(const int residual, const integer_store *f,
                                                              const region_panel *p, const region_row r,
                                                              const int32_t *sums, uint8_t *out) {
  const vi zero = vi_set((int32_t)f->out_zero);
  out += r.out + p->channel;
  for (int64_t i = 0; i < r.count; i++, sums += INGOT_PANEL, out += r.out_step) {
    for (int j = 0; 16 * j < p->count; j++) {
      const integer_columns *c = &p->columns[j];
      const vi rounded = region_rounded(residual, 0, 0, f, c, sums + 16 * j, r.residual + i * r.residual_step);
      const vi values = vi_add(rounded, zero);
      _mm512_mask_cvtepi32_storeu_epi8(out + 16 * j, (vm)(0xffffu >> (16 - c->lanes)), values);
    }
  }
}

static inline __attribute__((always_inline)) void region_floats(const int residual, const integer_store *f,
                                                                const region_panel *p, const region_row r,
                                                                const int32_t *sums, float *out) {
  const integer_columns low = p->columns[0], high = p->columns[1];
  out += r.out + p->channel;
  for (int64_t i = 0; i < r.count; i++, sums += INGOT_PANEL, out += r.out_step) {
    const int64_t at = r.residual + i * r.residual_step;
    v_store(out, region_value(residual, 0, 1, f, &low, sums, at));
    v_store(out + 16, region_value(residual, 0, 1, f, &high, sums + 16, at));
  }
}

/* Call `name` with the kind of residual as a constant. */
#define REGION_OF(name, ...)                                                                                           \
  {                                                                                                                    \
    if (p->residual == REGION_NONE)                                                                                    \
      name(REGION_NONE, __VA_ARGS__);                                                                                  \
    else if (p->residual == REGION_QUANT)                                                                              \
      name(REGION_QUANT, __VA_ARGS__);                                                                                 \
    else                                                                                                               \
      name(REGION_FLOATS, __VA_ARGS__);                                                                                \
  }
#define REGION_U8(residual, is_bound) region_quant(1, residual, is_bound, f, p, row, sums, t->g->out)
#define REGION_I8(residual, is_bound) region_quant(0, residual, is_bound, f, p, row, sums, t->g->out)
#define REGION_SOME(residual, out) region_some(residual, f, p, row, sums, out)
#define REGION_F32(residual, out) region_floats(residual, f, p, row, sums, out)

/* Store the results of adjacent positions in a row, the first of which is pixel (y, x). */
static inline void region_line(const region_task *t, const region *r, const integer_store *f, const region_panel *p,
                               int64_t y, int64_t x, int64_t count, const int32_t *sums) {
  const int64_t *o = t->g->out_strides, *s = t->g->residual_strides;
  const region_row row = {count, r->image * o[0] + y * o[1] + x * o[2], r->image * s[0] + y * s[1] + x * s[2], o[2],
                          s[2]};
  if (p->is_vectorized && f->result == INGOT_INTEGER_F32)
    REGION_OF(REGION_F32, t->g->out)
  else if (p->is_vectorized && p->count < INGOT_PANEL)
    REGION_OF(REGION_SOME, t->g->out)
  else if (p->is_vectorized && f->result == INGOT_INTEGER_I8)
    REGION_OF(REGION_I8, 0)
  else if (p->is_vectorized && p->is_bound)
    REGION_OF(REGION_U8, 1)
  else if (p->is_vectorized)
    REGION_OF(REGION_U8, 0)
  else {
    integer_place to[2 * AMX_ROWS];
    for (int64_t i = 0; i < count; i++) to[i] = (integer_place){row.out + i * o[2], row.residual + i * s[2]};
    for (int64_t j = 0; j < p->count; j += 16) {
      const int64_t lanes = p->count - j < 16 ? p->count - j : 16;
      integer_rows(f, sums + j, INGOT_PANEL, p->channel + j, lanes, count, t->g->out, to);
    }
  }
}

/* The sums of `rows` positions from `first` on. */
typedef struct { int64_t first, rows; int32_t *sums; } region_block;

/* Store the results of a block. */
static inline void region_store(const region_task *t, const region *r, const integer_store *f, const region_panel *p,
                                const region_block b) {
  for (int64_t at = b.first, next; at < b.first + b.rows; at = next) {
    const int64_t x = at % r->pitch, line = at / r->pitch, end = (line + 1) * r->pitch;
    next = end < b.first + b.rows ? end : b.first + b.rows;
    const int64_t count = r->width - x < next - at ? r->width - x : next - at;
    if (count > 0) region_line(t, r, f, p, r->y + line, r->x + x, count, b.sums + (at - b.first) * INGOT_PANEL);
  }
}

/* The products of positions [begin, end) and a panel. next: the panel that is read afterwards. */
static inline void region_positions(const region_task *t, const region *r, const integer_store *f,
                                    const region_panel *panel, const int8_t *weight, const int32_t *added,
                                    int64_t begin, int64_t end, const int8_t *next) {
  const int64_t run_bytes = (t->run + 3) / 4 * 4 * INGOT_PANEL;
  const int64_t near = end - begin > REGION_FEW ? REGION_NEAR : REGION_SHORT;
  const int64_t together = near / t->run > 1 ? near / t->run : 1, pieces = (t->run + near - 1) / near;
  const int64_t piece = pieces > 1 ? ((t->run + pieces - 1) / pieces + 63) / 64 * 64 : t->run;
  const int32_t blocks = (int32_t)((end - begin + 2 * AMX_ROWS - 1) / (2 * AMX_ROWS));
  const int8_t *b = weight;
  _Alignas(64) int32_t sums[REGION_ROWS * INGOT_PANEL];
  for (int64_t run = 0; run < t->runs; run += together) {
    for (int64_t k = 0; k < t->run; k += piece) {
      region_product p = {
        .runs = t->runs - run < together ? t->runs - run : together, .k = t->run - k < piece ? t->run - k : piece,
        .offsets = r->offsets + run, .a_stride = t->pixel_step, .b = b, .first = b == weight ? added : NULL};
      const int64_t bytes = p.runs * ((p.k + 3) / 4 * 4) * INGOT_PANEL;
      b += bytes;
      const int last = b == weight + t->runs * run_bytes;
      const char *prefetch = (const char *)(last ? next : b);
      if (prefetch) p.prefetch_step = (64 * INGOT_PANEL / blocks + 63) / 64 * 64;
      /* The results of a block are stored while AMX computes the next block's products, which take as long. */
      region_block before = {0};
      for (int32_t block = 0; block < blocks; block++) {
        const int64_t first = begin + task_begin(end - begin, block, blocks);
        const int64_t rows = begin + task_begin(end - begin, block + 1, blocks) - first;
        const int64_t index = last && p.first ? block % 2 * 2 * AMX_ROWS : first - begin;
        const region_block now = {first, rows, sums + index * INGOT_PANEL};
        p.a = r->a + k + first * t->pixel_step;
        p.prefetch = prefetch ? prefetch + block * (bytes / (64 * INGOT_PANEL)) * p.prefetch_step : NULL;
        region_sums(rows, panel->count, &p, now.sums);
        if (last) region_store(t, r, f, panel, before);
        before = now;
      }
      if (last) region_store(t, r, f, panel, before);
    }
  }
}

/* The results of a region for panels of its group. */
static inline void region_multiply(const region_task *t, const region *r, int64_t panel_begin, int64_t panel_end) {
  const integer_args *g = t->g;
  const integer_store store = integer_store_of(g, r->image);
  const int64_t k = t->channels * g->kernel_h * g->kernel_w;
  const int64_t panel_bytes = t->runs * ((t->run + 3) / 4 * 4) * INGOT_PANEL;
  /* Where sums are held between pieces, only some rows are processed at a time. */
  const int32_t iterations = k > REGION_NEAR ? (int32_t)((r->positions + REGION_ROWS - 1) / REGION_ROWS) : 1;
  const int8_t *weight = (const int8_t *)g->weight + (r->group * t->panels + panel_begin) * panel_bytes;
  for (int64_t panel = panel_begin; panel < panel_end; panel++, weight += panel_bytes) {
    const int64_t column = panel * INGOT_PANEL, left = t->out_channels - column;
    const int64_t channel = r->group * t->out_channels + column, columns = left < INGOT_PANEL ? left : INGOT_PANEL;
    const int8_t *next = panel + 1 < panel_end ? weight + panel_bytes : NULL;
    const region_panel of = region_panel_at(&store, channel, columns);
    /* Tiles load slowly from rows at one address, so the added terms are repeated. */
    _Alignas(64) int32_t added[AMX_ROWS * INGOT_PANEL];
    int32_t zeros[INGOT_PANEL];
    integer_added(g, k, integer_zero(g, r->image), channel, columns, added, zeros);
    for (int i = 1; i < AMX_ROWS; i++) memcpy(added + i * INGOT_PANEL, added, INGOT_PANEL * sizeof *added);
    for (int32_t i = 0; i < iterations; i++)
      region_positions(t, r, &store, &of, weight, added, task_begin(r->positions, i, iterations),
                       task_begin(r->positions, i + 1, iterations), i + 1 < iterations ? NULL : next);
  }
}

/* Treat a 1 x 1 convolution as one row of pixels, if its pixels are evenly spaced. */
static inline void region_flatten(integer_args *g) {
  const int64_t *x = g->x_strides, *o = g->out_strides, *r = g->residual_strides;
  if (g->kernel_h * g->kernel_w != 1 || g->stride_h * g->stride_w != 1 || g->pad_top + g->pad_left != 0) return;
  if (g->out_height != g->height || g->out_width != g->width) return;
  const int64_t w = g->width, h = g->height;
  if (x[1] != w * x[2] || o[1] != w * o[2] || (g->residual && r[1] != w * r[2])) return;
  const int together = !g->x_zero_step && !g->steps && x[0] == h * x[1] && o[0] == h * o[1] &&
                       (!g->residual || r[0] == h * r[1]);
  g->width = g->out_width = h * w * (together ? g->batch : 1);
  g->height = g->out_height = 1;
  if (together) g->batch = 1;
}

/* Plan a convolution by regions; width is 0 where that is not possible. */
static inline region_task region_task_of(const integer_args *g) {
  region_task t = {.g = g, .channels = g->channels / g->groups, .out_channels = g->out_channels / g->groups};
  t.panels = (t.out_channels + INGOT_PANEL - 1) / INGOT_PANEL;
  t.across = (g->kernel_w - 1) * g->dilation_w;
  t.span = (g->kernel_h - 1) * g->dilation_h;
  const int64_t taps = g->dilation_w == 1 ? 1 : g->kernel_w;
  t.runs = g->kernel_h * taps;
  t.run = t.channels * g->kernel_w / taps;
  t.run_left = (t.run % (4 * AMX_QUADS) + 3) / 4;
  if (g->weight_zero || !t.run || (taps > 1 && t.run % 4) || t.runs > INGOT_TILE_RUNS) return t;
  t.in_place = g->kernel_h * g->kernel_w == 1 && g->stride_h * g->stride_w == 1 && g->out_height == 1 &&
               g->pad_top + g->pad_left == 0 && g->out_width == g->width && t.channels % 4 == 0 && !g->x_flip;
  if (t.in_place) {
    t.pixel_step = g->x_strides[2];
    t.width = REGION_BYTES / t.channels > REGION_ROWS ? REGION_BYTES / t.channels : REGION_ROWS;
    t.lines = 1;
    return t;
  }
  t.skip = g->kernel_w == 1 ? g->stride_w : 1;
  t.column_step = g->kernel_w == 1 ? 1 : g->stride_w;
  t.pixel_step = t.column_step * t.channels;
  t.planes = t.span + 1 < g->stride_h ? t.span + 1 : g->stride_h;
  /* As many rows and columns at a time as scratch has space for. */
  const int64_t bytes = 4 * (g->scratch_stride - 16), beyond = t.across / t.column_step, below = t.span / g->stride_h;
  const int64_t pixels = bytes / (t.planes * t.pixel_step), widest = pixels / (below + 1) - beyond;
  if (widest <= 0) return t;
  const int64_t cuts = (g->out_width + widest - 1) / widest;
  t.width = (g->out_width + cuts - 1) / cuts;
  t.lines = pixels / (t.width + beyond) - below;
  return t;
}

/* Pixels [x, x + width) of rows [y, y + count) of an image, for panels [begin, end) of all. */
static inline void region_do(const region_task *t, region *r, int64_t begin, int64_t end) {
  const integer_args *g = t->g;
  r->pitch = t->in_place ? r->width : r->width + t->across / t->column_step;
  r->positions = (r->count - 1) * r->pitch + r->width;
  if (r->positions < AMX_ROWS) amx_shape(r->positions, t->run_left);
  for (int64_t unit = begin, stop; unit < end; unit = stop) {
    r->group = unit / t->panels;
    stop = (r->group + 1) * t->panels < end ? (r->group + 1) * t->panels : end;
    if (t->in_place)
      r->a = (const uint8_t *)g->x + r->image * g->x_strides[0] + r->x * g->x_strides[2] + r->group * t->channels;
    else
      region_copy(t, r);
    region_multiply(t, r, unit - r->group * t->panels, stop - r->group * t->panels);
  }
  if (r->positions < AMX_ROWS) amx_shape(AMX_ROWS, t->run_left);
}

/* Compute the convolution by regions, if its shapes allow. Returns whether it did. */
static inline int integer_regions(const integer_args *args, int32_t task, int32_t num_tasks) {
  integer_args g = *args;
  if (g.batch * g.out_height * g.out_width < AMX_ROWS) return 0;
  region_flatten(&g);
  region_task t = region_task_of(&g);
  if (t.width <= 0) return 0;
  t.copied = (uint8_t *)(g.scratch + task * g.scratch_stride);
  /* Tasks divide the rows, or the columns of a single row. */
  const int is_line = g.out_height == 1;
  const int64_t units = g.groups * t.panels, each = is_line ? g.out_width : g.out_height, all = g.batch * each;
  const int by_panels = t.runs * t.run * g.out_channels > REGION_LARGE;
  const gemm_share share =
      by_panels ? gemm_cut(units, all, task, num_tasks) : gemm_swap(gemm_cut(all, units, task, num_tasks));
  amx_shape(AMX_ROWS, t.run_left);
  for (int64_t begin = share.row_begin, end; begin < share.row_end; begin = end) {
    region r = {.image = begin / each};
    end = (r.image + 1) * each < share.row_end ? (r.image + 1) * each : share.row_end;
    const int64_t y = is_line ? 0 : begin % each, lines = is_line ? 1 : end - begin;
    const int64_t x = is_line ? begin % each : 0, width = is_line ? end - begin : g.out_width;
    const int32_t down = (int32_t)((lines + t.lines - 1) / t.lines);
    const int32_t across = (int32_t)((width + t.width - 1) / t.width);
    for (int32_t i = 0; i < down * across; i++) {
      r.y = y + task_begin(lines, i / across, down);
      r.count = y + task_begin(lines, i / across + 1, down) - r.y;
      r.x = x + task_begin(width, i % across, across);
      r.width = x + task_begin(width, i % across + 1, across) - r.x;
      region_do(&t, &r, share.panel_begin, share.panel_end);
    }
  }
  AMX_END(1);
  return 1;
}

#endif
