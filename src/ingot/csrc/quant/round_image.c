/* round_image.c: quantize float images to bytes with adjacent channels, by the range of each image. */
#include <math.h>
#include <string.h>

#include "kernel.h"

/* A row of an image as runs of adjacent floats: `runs` of them, `length` long, `step` apart. A row is one run, or one
 * run for each pixel, or, where columns are adjacent, one for each channel. */
typedef struct { int64_t runs, length, step; int32_t is_planes; } round_runs;

static inline round_runs round_runs_of(const round_image_args *g) {
  const int64_t *strides = g->x_strides;
  if (strides[3] != 1 && g->channels > 1) return (round_runs){g->channels, g->width, strides[3], 1};
  if (strides[2] == g->channels) return (round_runs){1, g->width * g->channels, 0, 0};
  return (round_runs){g->width, g->channels, strides[2], 0};
}

/* The smallest and largest element of a row of an image; NaN where an element is not finite. */
static inline void round_range(const round_runs *r, const float *x, float *range) {
  vf least[2], most[2], invalid[2];
  for (int i = 0; i < 2; i++) least[i] = most[i] = invalid[i] = v_set(0.0f);
  for (int64_t run = 0; run < r->runs; run++, x += r->step) {
    int64_t i = 0;
    for (; i + 32 <= r->length; i += 32) {
      INGOT_UNROLL for (int j = 0; j < 2; j++) {
        const vf v = v_load(x + i + 16 * j);
        least[j] = v_min(v, least[j]);
        most[j] = v_max(v, most[j]);
        invalid[j] = v_fma(v, v_set(0.0f), invalid[j]);
      }
    }
    for (; i < r->length; i += 16) {
      const vf v = r->length - i < 16 ? v_load_n(x + i, r->length - i) : v_load(x + i);
      least[0] = v_min(v, least[0]);
      most[0] = v_max(v, most[0]);
      invalid[0] = v_fma(v, v_set(0.0f), invalid[0]);
    }
  }
  const float none = v_sum(v_add(invalid[0], invalid[1]));
  range[0] = none == 0.0f ? -v_max_across(v_max(v_sub(v_set(0.0f), least[0]), v_sub(v_set(0.0f), least[1]))) : none;
  range[1] = none == 0.0f ? v_max_across(v_max(most[0], most[1])) : none;
}

/* The parameters of an image: factor = 255 / range, or 0 where all values are 0. */
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

/* Quantize up to 16 floats. */
static inline void round_quant(const float *x, int64_t lanes, round_level level, uint8_t *values) {
  const vf v = v_round(v_mul(lanes < 16 ? v_load_n(x, lanes) : v_load(x), v_set(level.factor)));
  v_store_u8(values, v_min(v_add(v, v_set(level.zero)), v_set(255.0f)));
}

static inline void round_line(const round_image_args *g, const round_runs *r, const float *x, round_level level,
                              uint8_t *out) {
  if (level.factor == 0.0f) {
    memset(out, 0, (size_t)(g->width * g->channels));
    return;
  }
  const int64_t pitch = r->is_planes ? g->channels : 1;
  for (int64_t run = 0; run < r->runs; run++, x += r->step) {
    uint8_t *to = out + (r->is_planes ? run : run * r->length);
    for (int64_t i = 0; i < r->length; i += 16) {
      const int64_t lanes = r->length - i < 16 ? r->length - i : 16;
      uint8_t some[16];
      round_quant(x + i, lanes, level, lanes < 16 || pitch > 1 ? some : to + i);
      for (int64_t j = 0; (lanes < 16 || pitch > 1) && j < lanes; j++) to[(i + j) * pitch] = some[j];
    }
  }
}

void K(round_image_u8)(const void *args, int32_t task, int32_t num_tasks) {
  const round_image_args *g = args;
  const round_runs runs = round_runs_of(g);
  const int64_t lines = g->batch * g->height, line_bytes = g->width * g->channels;
  const int32_t turn = task / num_tasks, own = task % num_tasks;
  int64_t known = -1;
  round_level level = {0};
  for (int64_t line = task_begin(lines, own, num_tasks); line < task_begin(lines, own + 1, num_tasks); line++) {
    const int64_t image = line / g->height, y = line % g->height;
    const float *x = g->x + image * g->x_strides[0] + y * g->x_strides[1];
    if (turn == 0) {
      round_range(&runs, x, g->ranges + 2 * line);
      continue;
    }
    if (image != known) level = round_level_of(g->ranges + 2 * image * g->height, g->height);
    known = image;
    if (y == 0) g->steps[image] = level.step, g->zeros[image] = (uint8_t)level.zero;
    round_line(g, &runs, x, level, g->out + line * line_bytes);
  }
}
