/* conv_bytes.c: images as bytes, and their 2-D convolution with filters of bytes as a product of windows and panels.
 * Windows are gathered as rows in scratch, some pixels at a time; of one tap and one step, pixels are the rows. */
#include <math.h>
#include <string.h>

#include "bytes.h"

/* The smallest and largest of a line of an image; NaN where an element is not finite. */
static inline void round_range(const round_image_args *g, const float *x, float *range) {
  vf least[2], most[2], invalid[2];
  for (int i = 0; i < 2; i++) least[i] = most[i] = invalid[i] = v_set(0.0f);
  const int is_dense = g->x_strides[2] == g->channels;
  const int64_t runs = is_dense ? 1 : g->width, length = is_dense ? g->width * g->channels : g->channels;
  for (int64_t run = 0; run < runs; run++, x += g->x_strides[2]) {
    int64_t i = 0;
    for (; i + 32 <= length; i += 32) {
      INGOT_UNROLL for (int j = 0; j < 2; j++) {
        const vf v = v_load(x + i + 16 * j);
        least[j] = v_min(v, least[j]);
        most[j] = v_max(v, most[j]);
        invalid[j] = v_fma(v, v_set(0.0f), invalid[j]);
      }
    }
    for (; i < length; i += 16) {
      const vf v = length - i < 16 ? v_load_n(x + i, length - i) : v_load(x + i);
      least[0] = v_min(v, least[0]);
      most[0] = v_max(v, most[0]);
      invalid[0] = v_fma(v, v_set(0.0f), invalid[0]);
    }
  }
  const float none = v_sum(v_add(invalid[0], invalid[1]));
  range[0] = none == 0.0f ? -v_max_across(v_max(v_sub(v_set(0.0f), least[0]), v_sub(v_set(0.0f), least[1]))) : none;
  range[1] = none == 0.0f ? v_max_across(v_max(most[0], most[1])) : none;
}

/* How an image is rounded: 255 / range, or 0 where all codes are 0. */
typedef struct { float factor, step, zero; } round_level;

static inline round_level round_level_of(const float *ranges, int64_t lines) {
  float least = 0.0f, most = 0.0f, invalid = 0.0f;
  for (int64_t i = 0; i < 2 * lines; i += 2) {
    least = ranges[i] < least ? ranges[i] : least;
    most = ranges[i + 1] > most ? ranges[i + 1] : most;
    invalid += ranges[i] * 0.0f;
  }
  const float range = most - least;
  if (invalid != 0.0f || !(range <= 0x1.fffffep127f)) return (round_level){0.0f, NAN, 0.0f};
  if (range < 0x1p-120f) return (round_level){0.0f, 0.0f, 0.0f};
  const float factor = 255.0f / range;
  return (round_level){factor, range / 255.0f, v_max_across(v_round(v_set(-least * factor)))};
}

/* Up to 16 floats as codes. */
static inline void round_codes(const float *x, int64_t lanes, round_level level, uint8_t *codes) {
  const vf v = v_round(v_mul(lanes < 16 ? v_load_n(x, lanes) : v_load(x), v_set(level.factor)));
  v_store_u8(codes, v_min(v_add(v, v_set(level.zero)), v_set(255.0f)));
}

static inline void round_line(const round_image_args *g, const float *x, round_level level, uint8_t *out) {
  const int is_dense = g->x_strides[2] == g->channels && g->filled == g->channels;
  const int64_t runs = is_dense ? 1 : g->width, length = is_dense ? g->width * g->channels : g->channels;
  const int64_t filled = is_dense ? length : g->filled;
  if (level.factor == 0.0f) {
    memset(out, 0, (size_t)(g->width * g->filled));
    return;
  }
  for (int64_t run = 0; run < runs; run++, x += g->x_strides[2], out += filled) {
    int64_t i = 0;
    for (; i + 16 <= length; i += 16) round_codes(x + i, 16, level, out + i);
    if (i == filled) continue;
    uint8_t last[16];
    round_codes(x + i, length - i, level, last);
    for (int64_t j = length - i; j < filled - i; j++) last[j] = 0;
    for (; i < filled; i += 4) memcpy(out + i, last + i % 16, 4);
  }
}

void K(round_image_u8)(const void *args, int32_t part, int32_t parts) {
  const round_image_args *g = args;
  const int64_t lines = g->batch * g->height, line_bytes = g->width * g->filled;
  const int32_t turn = part / parts, own = part % parts;
  int64_t known = -1;
  round_level level = {0};
  for (int64_t line = part_begin(lines, own, parts); line < part_begin(lines, own + 1, parts); line++) {
    const int64_t image = line / g->height, y = line % g->height;
    const float *x = g->x + image * g->x_strides[0] + y * g->x_strides[1];
    if (turn == 0) {
      round_range(g, x, g->ranges + 2 * line);
      continue;
    }
    if (image != known) level = round_level_of(g->ranges + 2 * image * g->height, g->height);
    known = image;
    if (y == 0) g->levels[2 * image] = level.step, g->levels[2 * image + 1] = level.zero;
    round_line(g, x, level, g->out + line * line_bytes);
  }
}

/* k: bytes of a window. Per group: `channels`, `out_channels`, `panels`. is_rows: pixels are windows as they lie. */
typedef struct {
  const conv_bytes_args *g;
  void (*tile)(int64_t rows, const bytes_product *p);
  int64_t k, row_stride, channels, out_channels, panels;
  int is_rows;
  uint8_t *rows;
} bytes_task;

/* Output pixels of one image that are computed together, for some panels of a group. */
typedef struct { int64_t image, pixel, count, group, panel_begin, panel_end; } bytes_block;

static inline uint8_t *bytes_copy(uint8_t *to, const uint8_t *from, int64_t count) {
  int64_t i = 0;
  for (; i + 64 <= count; i += 64) v_store((float *)(to + i), v_load((const float *)(from + i)));
  for (; i + 16 <= count; i += 16) memcpy(to + i, from + i, 16);
  for (; i < count; i += 4) memcpy(to + i, from + i, 4);
  return to + count;
}

static inline uint8_t *bytes_fill(uint8_t *to, int zero, int64_t count) {
  memset(to, zero, (size_t)count);
  return to + count;
}

/* The window of an output pixel; image points to the group's first channel. */
static inline void bytes_window(const bytes_task *t, const uint8_t *image, int64_t pixel, int zero, uint8_t *row) {
  const conv_bytes_args *g = t->g;
  const int64_t top = pixel / g->out_width * g->stride_h - g->pad_top;
  const int64_t left = pixel % g->out_width * g->stride_w - g->pad_left;
  const int64_t tap_stride = g->dilation_w * g->x_strides[2];
  int64_t first = left >= 0 ? 0 : (-left + g->dilation_w - 1) / g->dilation_w;
  int64_t last = left < g->width ? (g->width - 1 - left) / g->dilation_w + 1 : 0;
  last = last < g->kernel_w ? last : g->kernel_w;
  first = first < last ? first : last;
  last = first < last ? last : first;
  /* Adjacent taps go in one piece. */
  const int64_t together = tap_stride == t->channels && last > first ? last - first : 1;
  for (int64_t i = 0; i < g->kernel_h; i++) {
    const int64_t line = top + i * g->dilation_h;
    if (line < 0 || line >= g->height) {
      row = bytes_fill(row, zero, g->kernel_w * t->channels);
      continue;
    }
    const uint8_t *from = image + line * g->x_strides[1] + left * g->x_strides[2];
    if (first) row = bytes_fill(row, zero, first * t->channels);
    for (int64_t tap = first; tap < last; tap += together)
      row = bytes_copy(row, from + tap * tap_stride, together * t->channels);
    if (last < g->kernel_w) row = bytes_fill(row, zero, (g->kernel_w - last) * t->channels);
  }
}

/* out = the epilogue of sums[count][32] of a panel, which belong to output pixels of one image; line by line. */
static inline void bytes_finish(const bytes_task *t, const bytes_block *b, int64_t pixel, int64_t count, int64_t panel,
                                float step, const float *sums) {
  const conv_bytes_args *g = t->g;
  const int64_t column = panel * INGOT_PANEL, channel = b->group * t->out_channels + column;
  const int64_t columns = t->out_channels - column < INGOT_PANEL ? t->out_channels - column : INGOT_PANEL;
  for (int64_t done = 0; done < count;) {
    const int64_t y = (pixel + done) / g->out_width, x = (pixel + done) % g->out_width;
    const int64_t length = g->out_width - x < count - done ? g->out_width - x : count - done;
    const int64_t residual = b->image * g->residual_strides[0] + y * g->residual_strides[1] +
                             x * g->residual_strides[2];
    const int64_t out = b->image * g->out_strides[0] + y * g->out_strides[1] + x * g->out_strides[2];
    const gemm_epilogue epilogue = {g->bias, NULL, g->residual ? g->residual + residual : NULL, g->residual_strides[2],
                                    step, g->act_alpha, g->act_beta, g->activation, g->residual_first, NULL, 0};
    epilogue_apply(&epilogue, 0, channel, length, columns, sums + done * INGOT_PANEL, INGOT_PANEL,
                   g->out + out + channel, g->out_strides[2]);
    done += length;
  }
}

static inline void bytes_conv(const bytes_task *t, const bytes_block *b) {
  const conv_bytes_args *g = t->g;
  const float step = g->levels[b->image * g->levels_stride];
  const int32_t zero = (int32_t)g->levels[b->image * g->levels_stride + 1];
  const uint8_t *image = g->x + b->image * g->x_strides[0] + b->group * t->channels;
  const uint8_t *rows = image + b->pixel * g->x_strides[2];
  const int64_t row_stride = t->is_rows ? g->x_strides[2] : t->row_stride;
  if (!t->is_rows) {
    rows = t->rows;
    for (int64_t i = 0; i < b->count; i++) bytes_window(t, image, b->pixel + i, zero, t->rows + i * row_stride);
  }
  const int32_t tiles = (int32_t)((b->count + BYTES_ROWS - 1) / BYTES_ROWS);
  for (int64_t panel = b->panel_begin; panel < b->panel_end; panel++) {
    const int64_t at = b->group * t->panels + panel;
    int32_t first[INGOT_PANEL];
    float sums[BYTES_ROWS * INGOT_PANEL];
    for (int i = 0; i < INGOT_PANEL; i++) first[i] = -zero * g->sums[at * INGOT_PANEL + i];
    for (int32_t tile = 0; tile < tiles; tile++) {
      const int64_t begin = part_begin(b->count, tile, tiles), count = part_begin(b->count, tile + 1, tiles) - begin;
      const bytes_product product = {rows + begin * row_stride, row_stride, t->k / 4,
                                     g->weight + at * t->k * INGOT_PANEL, first, g->scales + at * INGOT_PANEL, sums};
      t->tile(count, &product);
      bytes_finish(t, b, b->pixel + begin, count, panel, step, sums);
    }
  }
}

#define BYTES_LARGE (1 << 19) /* bytes of a filter that one part alone reads */

/* The share of one part: pixels of all images, and panels of all groups. */
static inline void bytes_share(const bytes_task *t, int32_t part, int32_t parts) {
  const conv_bytes_args *g = t->g;
  const int64_t each = g->out_height * g->out_width, pixels = g->batch * each, units = g->groups * t->panels;
  const gemm_share share = t->k * g->out_channels > BYTES_LARGE ? gemm_cut(units, pixels, part, parts)
                                                                : gemm_turn(gemm_cut(pixels, units, part, parts));
  for (int64_t unit = share.panel_begin; unit < share.panel_end;) {
    const int64_t group = unit / t->panels, left = (group + 1) * t->panels;
    const int64_t stop = left < share.panel_end ? left : share.panel_end;
    for (int64_t pixel = share.row_begin; pixel < share.row_end;) {
      const int64_t image = pixel / each, rest = (image + 1) * each < share.row_end ? (image + 1) * each - pixel
                                                                                    : share.row_end - pixel;
      const int64_t count = rest < INGOT_CONV_PIXELS ? rest : INGOT_CONV_PIXELS;
      const bytes_block block = {image, pixel - image * each, count, group, unit - group * t->panels,
                                 stop - group * t->panels};
      bytes_conv(t, &block);
      pixel += count;
    }
    unit = stop;
  }
}

void K(conv2d_u8_packed)(const void *args, int32_t part, int32_t parts) {
  const conv_bytes_args *g = args;
  bytes_task task = {.g = g, .tile = K(bytes_tile), .channels = g->channels / g->groups,
                     .out_channels = g->out_channels / g->groups};
  #if defined(ISA_avx512)
  if (!__builtin_cpu_supports("avx512vnni")) task.tile = K(bytes_tile_widened);
  #endif
  task.k = task.channels * g->kernel_h * g->kernel_w;
  task.panels = (task.out_channels + INGOT_PANEL - 1) / INGOT_PANEL;
  task.row_stride = (task.k / 64 + 2) * 64; /* a line more, so that rows do not all share a set of the cache */
  task.is_rows = g->kernel_h * g->kernel_w == 1 && g->stride_h == 1 && g->stride_w == 1 && !g->pad_top &&
                 !g->pad_left && g->out_width == g->width && g->x_strides[1] == g->width * g->x_strides[2];
  task.rows = (uint8_t *)(g->scratch + part * g->scratch_stride);
  bytes_share(&task, part, parts);
}
