/* grid.c: images read between their elements at points of a grid. Elements are added in the order of rows, then
 * columns, each times the product of its row's weight and its column's; what lies outside is not read. */
#include "kernel.h"
#include "strided.h"

#define GRID_POINTS 64 /* whose elements and weights are found before channels are walked */
#define GRID_FAR 1e9f  /* elements from an image: what is farther, or NaN, is as far */

/* Where an axis is read at one point: up to two elements, their weights, and whether they count. */
typedef struct { int64_t place[2]; float weight[2]; int32_t counts[2]; } grid_taps;

/* Of some points, the elements that each reads, as offsets in a channel, and their weights. counts: a bit for each of
 * them; whole: whether all of all points count. */
typedef struct {
  int64_t offset[GRID_POINTS][4];
  float weight[GRID_POINTS][4];
  int32_t counts[GRID_POINTS];
  int32_t whole;
} grid_chunk;

static inline int64_t grid_floor(float x) {
  const int64_t whole = (int64_t)x;
  return whole - ((float)whole > x);
}

/* Ties go to the even one. */
static inline int64_t grid_round(float x) {
  const int64_t whole = grid_floor(x);
  const float part = x - (float)whole;
  return whole + (part > 0.5f || (part == 0.5f && whole % 2 != 0));
}

/* at: a coordinate of the grid, -1 to 1 over the axis. */
static inline grid_taps grid_axis(const grid_args *args, float at, int64_t size) {
  const float last = (float)(size - 1);
  float c = args->align_corners ? (at + 1.0f) / 2.0f * last : ((at + 1.0f) * (float)size - 1.0f) / 2.0f;
  if (!(c > -GRID_FAR)) c = -GRID_FAR;
  if (c > GRID_FAR) c = GRID_FAR;
  if (args->border) c = c < 0.0f ? 0.0f : c > last ? last : c;
  const int64_t first = args->linear ? grid_floor(c) : grid_round(c);
  const float part = c - (float)first;
  grid_taps taps = {{first, first + 1}, {args->linear ? 1.0f - part : 1.0f, part}, {1, 1}};
  for (int32_t i = 0; i < 2; i++) {
    taps.counts[i] = args->border || (taps.place[i] >= 0 && taps.place[i] < size);
    taps.place[i] = taps.place[i] < 0 ? 0 : taps.place[i] < size ? taps.place[i] : size - 1;
  }
  return taps;
}

/* Point k of a chunk; of the nearest mode there is one element. */
static inline void grid_point(const grid_args *args, const float *at, grid_chunk *chunk, int64_t k) {
  const int32_t taps = args->linear ? 2 : 1;
  const grid_taps rows = grid_axis(args, at[1], args->height), columns = grid_axis(args, at[0], args->width);
  chunk->counts[k] = 0;
  for (int32_t i = 0; i < taps; i++)
    for (int32_t j = 0; j < taps; j++) {
      const int32_t t = i * taps + j;
      chunk->offset[k][t] = rows.place[i] * args->x_strides[2] + columns.place[j] * args->x_strides[3];
      chunk->weight[k][t] = rows.weight[i] * columns.weight[j];
      chunk->counts[k] |= (rows.counts[i] && columns.counts[j]) << t;
    }
  chunk->whole &= chunk->counts[k] == (1 << taps * taps) - 1;
}

/* Point k of all channels, which lie side by side. */
static inline void grid_pixel(const grid_args *args, const grid_chunk *chunk, int64_t k, const float *x, float *out) {
  const int32_t taps = args->linear ? 4 : 1;
  for (int64_t c = 0; c < args->channels; c += 16) {
    const int64_t n = args->channels - c < 16 ? args->channels - c : 16;
    vf sum = v_set(0.0f);
    for (int32_t t = 0; t < taps; t++)
      if (chunk->counts[k] >> t & 1)
        sum = v_add(sum, v_mul(load_lanes(x + chunk->offset[k][t] + c, 1, n), v_set(chunk->weight[k][t])));
    store_lanes(out + c, 1, n, sum);
  }
}

/* Some points of one channel. */
static inline void grid_line(const grid_args *args, const grid_chunk *chunk, int64_t points, const float *x,
                             float *out) {
  const int32_t taps = args->linear ? 4 : 1;
  const int64_t step = args->out_strides[2];
  for (int64_t k = 0; k < points; k++) {
    const int64_t *at = chunk->offset[k];
    const float *w = chunk->weight[k];
    float sum = 0.0f;
    if (chunk->whole && taps == 4)
      sum = 0.0f + x[at[0]] * w[0] + x[at[1]] * w[1] + x[at[2]] * w[2] + x[at[3]] * w[3];
    else
      for (int32_t t = 0; t < taps; t++)
        if (chunk->counts[k] >> t & 1) sum += x[at[t]] * w[t];
    out[k * step] = sum;
  }
}

void K(grid_sample_f32)(const void *p, int32_t part, int32_t parts) {
  const grid_args *args = p;
  const int64_t end = part_begin(args->batch * args->points, part + 1, parts);
  const int is_last = args->x_strides[1] == 1 && args->out_strides[1] == 1;
  int64_t count = 0;
  for (int64_t i = part_begin(args->batch * args->points, part, parts); i < end; i += count) {
    const int64_t image = i / args->points, first = i % args->points;
    const float *x = args->x + image * args->x_strides[0], *grid = args->grid + 2 * i;
    float *out = args->out + image * args->out_strides[0] + first * args->out_strides[2];
    grid_chunk chunk;
    count = args->points - first < end - i ? args->points - first : end - i;
    if (count > GRID_POINTS) count = GRID_POINTS;
    chunk.whole = 1;
    for (int64_t k = 0; k < count; k++) grid_point(args, grid + 2 * k, &chunk, k);
    if (is_last)
      for (int64_t k = 0; k < count; k++) grid_pixel(args, &chunk, k, x, out + k * args->out_strides[2]);
    else
      for (int64_t c = 0; c < args->channels; c++)
        grid_line(args, &chunk, count, x + c * args->x_strides[1], out + c * args->out_strides[1]);
  }
}

#undef GRID_POINTS
#undef GRID_FAR
