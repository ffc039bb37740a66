/* conv_packed.c: 2-D convolution as a product of windows and packed panels of the weight. Windows are gathered as rows
 * in scratch (im2col), for some pixels and a piece of k at a time, so that they and a panel stay in the L2 cache; short
 * windows inside the image are read in place. */
#include <string.h>

#include "gemm/split_sums.h"
#include "conv/conv.h"

/* Most elements of a window that is read in place; with INGOT_SMALL none is, because the code that gathers windows is
 * needed anyway and gives the same bits. */
#if defined(INGOT_SMALL)
#define CONV_SHORT 1
#else
#define CONV_SHORT 1152
#endif

#define INGOT_CONV_NARROW 1 /* the variant for bf16 images, which are read plane by plane */
/* Most elements of a window whose product takes no longer than its results take to prefetch. */
#define CONV_BRIEF 16
/* Most elements of a filter, and fewest pixels of a row, for which a window longer than INGOT_K_BLOCK is read in place:
 * of short rows, a large share of the windows reaches into the padding. */
#define CONV_SMALL (1 << 15)
#define CONV_WIDE 12

/* The layout of windows: `planes` planes `plane_stride` apart, in which a kernel position has `unit` adjacent elements;
 * k elements in total. An element is the tile's, a float or a pair of bf16. narrow: planes are bf16, two adjacent
 * kernel positions are an element, and `end` is the end of the image. Per group: `channels`, `out_channels`,
 * `panels`. */
typedef struct {
  const conv_args *g;
  void (*tile)(int64_t rows, int64_t panels, const gemm_product *p);
  int64_t planes, plane_stride, unit, k;
  int64_t channels, out_channels, panels;
  int narrow;
  const uint16_t *end;
  int even;                         /* all pixels of the results, and of the residual, are evenly spaced */
  float *rows, *sums;               /* scratch: windows, and one panel after the other of [pixels][32] */
  int64_t offsets[CONV_SHORT];      /* of a window's elements that are read in place */
} conv_task;

/* Output pixels that one task computes together, for some panels of a group. Pixels count over the batch. */
typedef struct { int64_t pixel, count, group, panel_begin, panel_end; } conv_block;

static inline conv_pixel conv_pixel_after(const conv_args *g, conv_pixel at) {
  if (++at.x < g->out_width) return at;
  at.x = 0;
  if (++at.y == g->out_height) at = (conv_pixel){at.image + 1, 0, 0};
  return at;
}

/* Copy elements [at, at + count) of a window, of which [begin, end) are wanted in row, from `from`, or zeros if it is
 * null. Up to 15 elements after them are overwritten. */
static inline void conv_copy(const float *from, int64_t at, int64_t count, int64_t begin, int64_t end, float *row) {
  const int64_t skip = at < begin ? begin - at : 0;
  const int64_t stop = at + count < end ? count : end - at;
  row += at - begin;
  int64_t i = skip;
  if (!from) {
    for (; i < stop; i += 16) v_store(row + i, v_set(0.0f));
    return;
  }
  for (; i + 16 <= stop; i += 16) v_store(row + i, v_load(from + i));
  if (i < stop) v_store(row + i, v_load_n(from + i, stop - i));
}

/* Kernel positions of a window that starts at `start` before the first one inside [0, size). */
static inline int64_t conv_taps_before(int64_t start, int64_t dilation, int64_t taps) {
  const int64_t before = start >= 0 ? 0 : (-start + dilation - 1) / dilation;
  return before < taps ? before : taps;
}

/* Elements [begin, end) of the window of an output pixel; image points to the group's first channel. */
static inline void conv_read_window(const conv_task *t, const float *image, conv_pixel at, int64_t begin, int64_t end,
                               float *row) {
  const conv_args *g = t->g;
  const int64_t top = at.y * g->stride_h - g->pad_top, left = at.x * g->stride_w - g->pad_left;
  const int64_t tap_stride = g->dilation_w * g->x_strides[2], unit = t->unit, width = g->kernel_w * unit;
  const int64_t first = conv_taps_before(left, g->dilation_w, g->kernel_w);
  int64_t last = left < g->width ? (g->width - 1 - left) / g->dilation_w + 1 : 0;
  if (last > g->kernel_w) last = g->kernel_w;
  if (last < first) last = first;
  /* Adjacent kernel positions are copied in one piece. */
  const int64_t together = tap_stride == unit ? last - first : 1;
  int64_t k = 0;
  for (int64_t plane = 0; plane < t->planes; plane++) {
    for (int64_t i = 0; i < g->kernel_h; i++, k += width) {
      if (k >= end || k + width <= begin) continue;
      const int64_t line = top + i * g->dilation_h;
      if (line < 0 || line >= g->height) {
        conv_copy(NULL, k, width, begin, end, row);
        continue;
      }
      const float *from = image + plane * t->plane_stride + line * g->x_strides[1] + left * g->x_strides[2];
      conv_copy(NULL, k, first * unit, begin, end, row);
      for (int64_t tap = first; tap < last; tap += together)
        conv_copy(from + tap * tap_stride, k + tap * unit, together * unit, begin, end, row);
      conv_copy(NULL, k + last * unit, width - last * unit, begin, end, row);
    }
  }
}

/* The whole window at (top, left) of an output pixel of bf16 planes, if it is inside the image and not dilated. Up to 7
 * elements after it are read and overwritten. Returns whether it did. */
static inline int conv_read_inner(const conv_task *t, const uint16_t *image, int64_t top, int64_t left, uint16_t *row) {
  const conv_args *g = t->g;
  const int64_t planes = t->planes, plane_stride = t->plane_stride, lines = g->kernel_h, width = g->kernel_w;
  const int64_t line_stride = g->x_strides[1], bottom = top + lines - 1;
  if (top < 0 || left < 0 || bottom >= g->height || left + width > g->width) return 0;
  if (g->dilation_h != 1 || g->dilation_w != 1) return 0;
  if (t->end - (image + (planes - 1) * plane_stride + bottom * line_stride + left) < (width + 7) / 8 * 8) return 0;
  image += top * line_stride + left;
  for (int64_t plane = 0; plane < planes; plane++, image += plane_stride) {
    const uint16_t *from = image;
    for (int64_t i = 0; i < lines; i++, from += line_stride, row += width) {
      for (int64_t j = 0; j < width; j += 8) memcpy(row + j, from + j, 8 * sizeof *row);
    }
  }
  return 1;
}

/* Pairs [begin, end) of the window of an output pixel of bf16 planes; a zero follows the last element. */
static inline void conv_read_taps(const conv_task *t, const uint16_t *image, conv_pixel at, int64_t begin, int64_t end,
                                  uint16_t *row) {
  const conv_args *g = t->g;
  const int64_t top = at.y * g->stride_h - g->pad_top, left = at.x * g->stride_w - g->pad_left;
  const int64_t step = g->dilation_w, width = g->kernel_w, taps = t->planes * g->kernel_h * width;
  int64_t k = begin == 0 && end == t->k && conv_read_inner(t, image, top, left, row) ? taps : 0;
  for (int64_t plane = 0; k < taps; plane++) {
    for (int64_t i = 0; i < g->kernel_h; i++, k += width) {
      const int64_t from = 2 * begin - k > 0 ? 2 * begin - k : 0, to = 2 * end - k < width ? 2 * end - k : width;
      const int64_t line = top + i * g->dilation_h, columns = line >= 0 && line < g->height ? g->width : 0;
      const uint16_t *x = image + plane * t->plane_stride + (columns ? line * g->x_strides[1] : 0);
      for (int64_t j = from, column = left + from * step; j < to; j++, column += step)
        row[k + j - 2 * begin] = column >= 0 && column < columns ? x[column] : 0;
    }
  }
  if (taps < 2 * end) row[taps - 2 * begin] = 0;
}

/* Elements [begin, end) of the window of an output pixel of a group. */
static inline void conv_read(const conv_task *t, conv_pixel at, int64_t group, int64_t begin, int64_t end, float *row) {
  const int64_t image = at.image * t->g->x_strides[0] + group * t->channels * t->g->x_strides[3];
  switch (t->narrow) {
    case INGOT_CONV_NARROW: conv_read_taps(t, (const uint16_t *)t->g->x + image, at, begin, end, (void *)row); break;
    default: conv_read_window(t, t->g->x + image, at, begin, end, row);
  }
}

static inline int64_t conv_columns(const conv_task *t, int64_t panel) {
  const int64_t left = t->out_channels - panel * INGOT_PANEL;
  return left < INGOT_PANEL ? left : INGOT_PANEL;
}

/* out = the epilogue of sums[count][32] of the output pixels from `pixel` on; row by row of the image. */
static inline void conv_store(const conv_task *t, int64_t pixel, int64_t count, int64_t group, int64_t panel,
                              const float *sums) {
  const conv_args *g = t->g;
  const int64_t channel = group * t->out_channels + panel * INGOT_PANEL, columns = conv_columns(t, panel);
  for (int64_t done = 0; done < count;) {
    const conv_pixel at = conv_pixel_at(g, pixel + done);
    const int64_t length = g->out_width - at.x < count - done ? g->out_width - at.x : count - done;
    const gemm_epilogue epilogue = conv_epilogue(g, at);
    float *out = conv_out(g, at);
    conv_apply(&epilogue, channel, length, columns, sums + done * INGOT_PANEL, out ? out + channel : NULL,
               g->out_strides[2]);
    done += length;
  }
}

/* Whether the tile may apply the epilogue to some pixels of a panel: it is vectorized, the columns fill registers, and
 * the pixels are evenly spaced. If so, fills in its parameters. */
static inline int conv_store_in_tile(const conv_task *t, int64_t pixel, int64_t count, int64_t group, int64_t panel,
                                     gemm_store *store) {
  const conv_args *g = t->g;
  const int64_t channel = group * t->out_channels + panel * INGOT_PANEL;
  const conv_pixel at = conv_pixel_at(g, pixel);
  const gemm_epilogue epilogue = conv_epilogue(g, at);
  if (conv_columns(t, panel) % (INGOT_PANEL / 2) || !epilogue_is_vectorized(&epilogue)) return 0;
  if (at.x + count > g->out_width && !t->even) return 0;
  float *out = conv_out(g, at);
  *store = epilogue_store(&epilogue, 0, channel, out ? out + channel : NULL, g->out_strides[2]);
  return 1;
}

/* The epilogue store of the pixels after the first `count` ones. */
static inline gemm_store conv_store_from(const gemm_store *store, int64_t count) {
  gemm_store from = *store;
  if (from.out) from.out += count * from.out_stride;
  if (from.rounded) from.rounded += count * from.rounded_stride;
  if (from.residual) from.residual += count * from.residual_stride;
  return from;
}

/* The number of blocks that so many rows are multiplied in. */
#if defined(INGOT_LIBRARY)
#define CONV_BLOCKS(t, rows, stride)                                                                                   \
  ((t)->tile == K(gemm_tile_split) ? ((rows) + SPLIT_ROWS - 1) / SPLIT_ROWS : gemm_blocks(rows, stride))
#else
#define CONV_BLOCKS(t, rows, stride) gemm_blocks(rows, stride)
#endif

/* Add elements [begin, end) of the gathered rows to the sums of one panel; next: what is read afterwards. */
static inline void conv_add_panel(const conv_task *t, const conv_block *b, int64_t panel, int64_t begin, int64_t end,
                              int64_t row_stride, const float *next) {
  const int whole = end - begin == t->k;
  const int64_t blocks = CONV_BLOCKS(t, b->count, row_stride), steps = end - begin;
  const int64_t prefetch_step = next ? (INGOT_PANEL * 4 + blocks - 1) / blocks : 0;
  const float *weight = t->g->weight + ((b->group * t->panels + panel) * t->k + begin) * INGOT_PANEL;
  for (int64_t block = 0; block < blocks; block++) {
    const int64_t first = task_begin(b->count, (int32_t)block, (int32_t)blocks);
    const int64_t length = task_begin(b->count, (int32_t)block + 1, (int32_t)blocks) - first;
    const float *rows = t->rows + first * row_stride;
    float *sums = whole ? t->sums : t->sums + ((panel - b->panel_begin) * b->count + first) * INGOT_PANEL;
    gemm_store store;
    const int done = end == t->k && conv_store_in_tile(t, b->pixel + first, length, b->group, panel, &store);
    const gemm_product product = {
      .k = steps, .a = rows, .a_stride = row_stride, .b = weight, .b_stride = INGOT_PANEL, .sums = sums,
      .sums_stride = INGOT_PANEL, .more = begin > 0, .prefetch_step = prefetch_step, .store = done ? &store : NULL,
      .prefetch = next ? (const char *)next + block * steps * prefetch_step : NULL,
      .halved = t->out_channels - panel * INGOT_PANEL <= INGOT_PANEL / 2};
    t->tile(length, 1, &product);
    if (end == t->k && !done) conv_store(t, b->pixel + first, length, b->group, panel, sums);
  }
}

/* A block of at most INGOT_CONV_PIXELS pixels from gathered windows, at most INGOT_CONV_K elements at a time. */
static inline void conv_gathered(const conv_task *t, const conv_block *b) {
  const conv_args *g = t->g;
  const int64_t k_blocks = (t->k + INGOT_K_BLOCK - 1) / INGOT_K_BLOCK;
  /* At least one: a window without elements sums to zeros, which also get their epilogue. */
  const int32_t pieces = t->k ? (int32_t)((t->k + INGOT_CONV_K - 1) / INGOT_CONV_K) : 1;
  int64_t begin = 0;
  for (int32_t piece = 0; piece < pieces; piece++) {
    int64_t end = task_begin(k_blocks, piece + 1, pieces) * INGOT_K_BLOCK;
    if (end > t->k) end = t->k;
    /* 16 more, so that rows do not all share a cache set. */
    const int64_t row_stride = (end - begin + 15) / 16 * 16 + 16;
    conv_pixel at = conv_pixel_at(g, b->pixel);
    for (int64_t i = 0; i < b->count; i++, at = conv_pixel_after(g, at))
      conv_read(t, at, b->group, begin, end, t->rows + i * row_stride);
    for (int64_t panel = b->panel_begin; panel < b->panel_end; panel++) {
      const float *group = g->weight + b->group * t->panels * t->k * INGOT_PANEL;
      const float *next = panel + 1 < b->panel_end ? group + ((panel + 1) * t->k + begin) * INGOT_PANEL
                          : end < t->k             ? group + (b->panel_begin * t->k + end) * INGOT_PANEL
                                                   : NULL;
      conv_add_panel(t, b, panel, begin, end, row_stride, next);
    }
    begin = end;
  }
}

/* sums[rows][32] for pixels of one output row whose windows are read in place: x points to the first one, the others
 * are x_stride apart. `most`, the number of rows, and `width`, of registers in a row, are constants at every call;
 * wanted: registers of the panel, 1 or 2. store: null, or the epilogue of the first row, which is then applied; it has
 * neither a residual nor results as bf16. */
static inline __attribute__((always_inline)) void conv_tile(const int most, const int width, int64_t wanted,
                                                            const conv_task *t, const float *x, int64_t x_stride,
                                                            const float *panel, float *sums, const gemm_store *store) {
  const int rows = most < GEMM_ROWS ? most : GEMM_ROWS;
  for (int64_t half = 0; half < wanted; half += width) {
    const float *third[(GEMM_ROWS + 2) / 3];
    INGOT_UNROLL for (int i = 0; i < rows; i += 3) third[i / 3] = x + i * x_stride;
    for (int64_t begin = 0; begin < t->k || !begin; begin += INGOT_K_BLOCK) {
      const int64_t end = t->k - begin < INGOT_K_BLOCK ? t->k : begin + INGOT_K_BLOCK;
      vf sum[GEMM_ROWS][2];
      INGOT_UNROLL for (int i = 0; i < rows; i++) {
        INGOT_UNROLL for (int j = 0; j < width; j++) sum[i][j] = v_set(0.0f);
      }
      for (int64_t s = begin; s < end; s++) {
        const int64_t offset = t->offsets[s];
        vf w[2];
        INGOT_UNROLL for (int j = 0; j < width; j++) w[j] = v_load(panel + s * INGOT_PANEL + (half + j) * 16);
        INGOT_UNROLL for (int i = 0; i < rows; i++) {
          const vf v = v_set(*(third[i / 3] + offset + i % 3 * x_stride));
          INGOT_UNROLL for (int j = 0; j < width; j++) sum[i][j] = v_fma(v, w[j], sum[i][j]);
        }
      }
      if (begin) {
        INGOT_UNROLL for (int i = 0; i < rows; i++) {
          INGOT_UNROLL for (int j = 0; j < width; j++)
            sum[i][j] = v_add(v_load(sums + i * INGOT_PANEL + (half + j) * 16), sum[i][j]);
        }
      }
      if (store && end == t->k) {
        INGOT_UNROLL for (int j = 0; j < width; j++) {
          const vf low = v_set(store->low), high = v_set(store->high);
          const vf bias = store->bias ? v_load(store->bias + (half + j) * 16) : v_set(-0.0f);
          INGOT_UNROLL for (int i = 0; i < rows; i++)
            v_store(store->out + i * store->out_stride + (half + j) * 16,
                    v_min(high, v_max(low, v_add(sum[i][j], bias))));
        }
      } else {
        INGOT_UNROLL for (int i = 0; i < rows; i++) {
          INGOT_UNROLL for (int j = 0; j < width; j++) v_store(sums + i * INGOT_PANEL + (half + j) * 16, sum[i][j]);
        }
      }
    }
  }
}

/* The same for any number of rows up to GEMM_ROWS, with two registers in a row if they fit and are wanted. */
static void K(conv_tile_rows)(int64_t rows, int64_t wanted, const conv_task *t, const float *x, int64_t x_stride,
                              const float *panel, float *sums, const gemm_store *store) {
  #define CONV_TILE(rows)                                                                                              \
    case rows:                                                                                                         \
      if (GEMM_ROWS > 6 && wanted == 2)                                                                                \
        conv_tile(rows, 2, 2, t, x, x_stride, panel, sums, store);                                                     \
      else                                                                                                             \
        conv_tile(rows, 1, wanted, t, x, x_stride, panel, sums, store);                                                \
      break;
  switch (rows) {
    CONV_TILE(12)
    CONV_TILE(11)
    CONV_TILE(10)
    CONV_TILE(9)
    CONV_TILE(8)
    CONV_TILE(7)
    CONV_TILE(6)
    CONV_TILE(5)
    CONV_TILE(4)
    CONV_TILE(3)
    CONV_TILE(2)
    CONV_TILE(1)
  }
  #undef CONV_TILE
}

/* The same for pairs, whose windows are one piece for each kernel row: sums[rows][32], or the results of the epilogue
 * store. */
static inline void conv_pairs_in_place(const conv_task *t, int64_t rows, int32_t halved, const float *x,
                                       int64_t x_stride, const float *panel, float *sums,
                                       const gemm_store *store) {
  const conv_args *g = t->g;
  const int64_t width = g->kernel_w * t->unit;
  for (int64_t i = 0; i < g->kernel_h; i++) {
    const gemm_product product = {
      .k = width, .a = x + i * g->dilation_h * g->x_strides[1], .a_stride = x_stride,
      .b = panel + i * width * INGOT_PANEL, .b_stride = INGOT_PANEL, .sums = sums, .sums_stride = INGOT_PANEL,
      .more = i > 0, .store = i + 1 == g->kernel_h ? store : NULL, .halved = halved};
    t->tile(rows, 1, &product);
  }
}

/* Pixels of one output row whose windows are inside the image. */
static inline void conv_in_place(const conv_task *t, const conv_block *b) {
  const conv_args *g = t->g;
  const conv_pixel at = conv_pixel_at(g, b->pixel);
  const int64_t x_stride = g->stride_w * g->x_strides[2];
  const float *x = g->x + at.image * g->x_strides[0] + b->group * t->channels * g->x_strides[3] +
                   (at.y * g->stride_h - g->pad_top) * g->x_strides[1] +
                   (at.x * g->stride_w - g->pad_left) * g->x_strides[2];
  const int32_t tiles = (int32_t)((b->count + GEMM_ROWS - 1) / GEMM_ROWS);
  const int pairs = t->tile != K(gemm_tile);
  for (int64_t panel = b->panel_begin; panel < b->panel_end; panel++) {
    const int64_t wanted = t->out_channels - panel * INGOT_PANEL <= INGOT_PANEL / 2 ? 1 : 2;
    const float *weight = g->weight + (b->group * t->panels + panel) * t->k * INGOT_PANEL;
    gemm_store store = {0};
    const int vectorized = conv_store_in_tile(t, b->pixel, b->count, b->group, panel, &store);
    const int done = vectorized && (pairs || (store.out && !store.residual && !store.rounded));
    const int expects = done && t->k > CONV_BRIEF;
    for (int32_t tile = 0; tile < tiles; tile++) {
      const int64_t first = task_begin(b->count, tile, tiles);
      const int64_t length = task_begin(b->count, tile + 1, tiles) - first;
      const gemm_store rest = done ? conv_store_from(&store, first) : store;
      if (expects && rest.out) gemm_expect(rest.out, rest.out_stride, length);
      if (pairs)
        conv_pairs_in_place(t, length, wanted == 1, x + first * x_stride, x_stride, weight, t->sums,
                            done ? &rest : NULL);
      else
        K(conv_tile_rows)(length, wanted, t, x + first * x_stride, x_stride, weight, t->sums, done ? &rest : NULL);
      if (!done) conv_store(t, b->pixel + first, length, b->group, panel, t->sums);
    }
  }
}

/* Blocks of pixels with short windows: in each output row, windows that reach into the padding are gathered. */
static inline void conv_short(const conv_task *t, const conv_block *b) {
  const conv_args *g = t->g;
  for (int64_t done = 0; done < b->count;) {
    const conv_pixel at = conv_pixel_at(g, b->pixel + done);
    const int64_t count = g->out_width - at.x < b->count - done ? g->out_width - at.x : b->count - done;
    const int64_t top = at.y * g->stride_h - g->pad_top;
    const int64_t room = g->width - 1 - (g->kernel_w - 1) * g->dilation_w + g->pad_left;
    int64_t begin = (g->pad_left + g->stride_w - 1) / g->stride_w - at.x, end = room / g->stride_w + 1 - at.x;
    if (top < 0 || top + (g->kernel_h - 1) * g->dilation_h >= g->height || room < 0) end = 0;
    end = end < count ? end : count;
    begin = begin < 0 ? 0 : begin;
    if (end <= begin) begin = end = count;
    const int64_t borders[4] = {0, begin, end, count};
    for (int i = 0; i < 3; i++) {
      conv_block piece = {b->pixel + done + borders[i], borders[i + 1] - borders[i], b->group, b->panel_begin,
                          b->panel_end};
      if (i == 1 && piece.count) {
        conv_in_place(t, &piece);
        continue;
      }
      for (const int64_t stop = b->pixel + done + borders[i + 1]; piece.pixel < stop; piece.pixel += piece.count) {
        piece.count = stop - piece.pixel < INGOT_CONV_PIXELS ? stop - piece.pixel : INGOT_CONV_PIXELS;
        conv_gathered(t, &piece);
      }
    }
    done += count;
  }
}

/* Whether windows are read in place: gathering them pays if they are multiplied with many panels. */
#if defined(INGOT_SMALL)
static inline int conv_is_short(const conv_task *t) { (void)t; return 0; }
#else
static inline int conv_is_short(const conv_task *t) {
  const int is_small = t->k * t->out_channels <= CONV_SMALL;
  if (t->narrow) return 0;
  if (t->tile != K(gemm_tile)) return is_small && t->g->dilation_w == 1 && t->g->x_strides[2] == t->unit;
  return t->k <= INGOT_K_BLOCK || (t->k <= CONV_SHORT && is_small && t->g->out_width >= CONV_WIDE);
}
#endif

/* The share of one task, group by group and block by block. */
static inline void conv_share(conv_task *t, int32_t task, int32_t num_tasks) {
  const conv_args *g = t->g;
  const int64_t pixels = g->batch * g->out_height * g->out_width, units = g->groups * t->panels;
  const int by_panels = conv_by_panels(t->k * g->out_channels, pixels, INGOT_CONV_PIXELS, num_tasks);
  gemm_share share = by_panels ? gemm_cut(units, pixels, task, num_tasks) : gemm_cut(pixels, units, task, num_tasks);
  if (by_panels) share = (gemm_share){share.row_begin, share.row_end, share.panel_begin, share.panel_end};
  const int is_short = conv_is_short(t);
  const int64_t most = is_short ? share.panel_end - share.panel_begin : INGOT_CONV_PIXELS;
  const int32_t blocks = (int32_t)((share.panel_end - share.panel_begin + most - 1) / (most ? most : 1));
  for (int64_t unit = share.row_begin; unit < share.row_end;) {
    const int64_t group = unit / t->panels, left = (group + 1) * t->panels;
    const int64_t stop = left < share.row_end ? left : share.row_end;
    for (int32_t i = 0; i < blocks; i++) {
      const int64_t pixel = share.panel_begin + task_begin(share.panel_end - share.panel_begin, i, blocks);
      const int64_t end = share.panel_begin + task_begin(share.panel_end - share.panel_begin, i + 1, blocks);
      const conv_block block = {pixel, end - pixel, group, unit - group * t->panels, stop - group * t->panels};
      if (is_short)
        conv_short(t, &block);
      else
        conv_gathered(t, &block);
    }
    unit = stop;
  }
}

/* Whether the pixels of a view are evenly spaced over rows and images. */
static inline int conv_is_even(const conv_args *g, const int64_t strides[3]) {
  return (g->out_height == 1 || strides[1] == g->out_width * strides[2]) &&
         (g->batch == 1 || strides[0] == g->out_height * g->out_width * strides[2]);
}

/* Derive the remaining fields, and compute the task. */
static inline void conv_perform(conv_task *t, int32_t task, int32_t num_tasks) {
  const conv_args *g = t->g;
  t->channels = g->channels / g->groups;
  t->out_channels = g->out_channels / g->groups;
  t->panels = (t->out_channels + INGOT_PANEL - 1) / INGOT_PANEL;
  t->k = t->channels * g->kernel_h * g->kernel_w;
  if (t->narrow) {
    t->k = (t->k + 1) / 2;
    t->end = (const uint16_t *)g->x + (g->batch - 1) * g->x_strides[0] + (g->channels - 1) * g->x_strides[3] +
             (g->height - 1) * g->x_strides[1] + g->width;
  }
  t->even = (!g->out || conv_is_even(g, g->out_strides)) && (!g->rounded || conv_is_even(g, g->rounded_strides)) &&
            (!g->residual || conv_is_even(g, g->residual_strides));
  t->sums = g->scratch + task * g->scratch_stride;
  t->rows = t->sums + INGOT_CONV_PIXELS * t->panels * INGOT_PANEL;
  if (conv_is_short(t) && t->tile == K(gemm_tile)) {
    int64_t *offset = t->offsets;
    for (int64_t plane = 0; plane < t->planes; plane++)
      for (int64_t i = 0; i < g->kernel_h; i++)
        for (int64_t j = 0; j < g->kernel_w; j++)
          for (int64_t c = 0; c < t->unit; c++)
            *offset++ = plane * t->plane_stride + i * g->dilation_h * g->x_strides[1] +
                        j * g->dilation_w * g->x_strides[2] + c;
  }
  conv_share(t, task, num_tasks);
}

void K(conv2d_f32_packed)(const void *args, int32_t task, int32_t num_tasks) {
  const conv_args *g = args;
  conv_task state = {.g = g, .tile = K(gemm_tile), .planes = 1, .unit = g->channels / g->groups};
  conv_perform(&state, task, num_tasks);
}

void K(conv2d_bf16_packed)(const void *args, int32_t task, int32_t num_tasks) {
  conv_args g = *(const conv_args *)args; /* counted in pairs */
  g.channels /= 2;
  for (int i = 0; i < 3; i++) g.x_strides[i] /= 2;
  conv_task state = {.g = &g, .tile = GEMM_BF16_TILE(&g), .planes = 1, .unit = g.channels / g.groups};
  conv_perform(&state, task, num_tasks);
}

void K(conv2d_f32_planes)(const void *args, int32_t task, int32_t num_tasks) {
  const conv_args *g = args;
  conv_task state = {.g = g, .tile = K(gemm_tile), .planes = g->channels / g->groups,
                     .plane_stride = g->x_strides[3], .unit = 1};
  conv_perform(&state, task, num_tasks);
}

void K(conv2d_bf16_planes)(const void *args, int32_t task, int32_t num_tasks) {
  const conv_args *g = args;
  conv_task state = {.g = g, .tile = GEMM_BF16_TILE(g), .planes = g->channels / g->groups,
                     .plane_stride = g->x_strides[3], .narrow = INGOT_CONV_NARROW};
  conv_perform(&state, task, num_tasks);
}
