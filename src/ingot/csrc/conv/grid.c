/* grid.c: grid_sample: read images between their elements at points of a grid. Elements are added in the order of rows,
 * then columns, each times the product of its row's weight and its column's; elements outside of the image are not
 * read. */
#include "kernel.h"
#include "elementwise/strided.h"
#include "math/vmath.h"

#define GRID_POINTS 64 /* whose elements and weights are computed before the loop over channels */
#define GRID_FAR 1e9f  /* limit of the distance from an image, in elements; larger ones and NaN are set to it */

/* The samples of an axis at 16 points: two elements as offsets, their weights, and whether they count. */
typedef struct { int64_t offset[2][16]; float weight[2][16]; uint8_t counts[2][16]; } grid_taps;

/* For some points, the elements that each reads, as offsets in a channel, their weights, and whether they count. whole:
 * whether all of them count. */
typedef struct {
  int64_t offset[4][GRID_POINTS];
  float weight[4][GRID_POINTS];
  uint8_t counts[4][GRID_POINTS];
  int32_t whole;
} grid_chunk;

/* at: coordinates of the grid, -1 to 1 over the axis. Ties of the nearest mode go to the even element. */
static inline void grid_axis(const grid_args *args, vf at, int64_t size, int64_t stride, grid_taps *taps) {
  const vf one = v_set(1.0f), two = v_set(2.0f), end = v_set((float)(size - 1)), far = v_set(GRID_FAR);
  const vf from_edge = v_add(at, one);
  vf c = args->align_corners ? v_mul(v_div(from_edge, two), end)
                             : v_div(v_sub(v_mul(from_edge, v_set((float)size)), one), two);
  c = v_select(v_lt(v_set(-GRID_FAR), c), c, v_set(-GRID_FAR));
  c = v_select(v_lt(far, c), far, c);
  if (args->border) c = v_select(v_lt(c, v_set(0.0f)), v_set(0.0f), v_select(v_lt(end, c), end, c));
  const vf first = args->linear ? v_floor(c) : v_round(c), task = v_sub(c, first);
  float whole[16];
  v_store(whole, first);
  v_store(taps->weight[0], args->linear ? v_sub(one, task) : one);
  v_store(taps->weight[1], task);
  for (int32_t i = 0; i < 2; i++)
    for (int32_t l = 0; l < 16; l++) {
      const int64_t position = (int64_t)whole[l] + i, last = size - 1;
      const int64_t inside = position < 0 ? 0 : position > last ? last : position;
      taps->offset[i][l] = inside * stride;
      taps->counts[i][l] = (uint8_t)((inside == position) | (args->border != 0));
    }
}

/* Points k to k + 16 of a chunk, of which `count` are in the grid; in the nearest mode each reads one element. */
static inline void grid_points(const grid_args *args, const float *at, int64_t count, grid_chunk *chunk, int64_t k) {
  const int32_t taps = args->linear ? 2 : 1;
  grid_taps rows, columns;
  grid_axis(args, load_lanes(at + 1, 2, count), args->height, args->x_strides[2], &rows);
  grid_axis(args, load_lanes(at, 2, count), args->width, args->x_strides[3], &columns);
  for (int32_t i = 0; i < taps; i++)
    for (int32_t j = 0; j < taps; j++) {
      const int32_t t = i * taps + j;
      for (int32_t l = 0; l < 16; l++) chunk->offset[t][k + l] = rows.offset[i][l] + columns.offset[j][l];
      for (int32_t l = 0; l < 16; l++) {
        chunk->counts[t][k + l] = rows.counts[i][l] & columns.counts[j][l];
        chunk->whole &= l >= count || chunk->counts[t][k + l];
      }
      v_store(chunk->weight[t] + k, v_mul(v_load(rows.weight[i]), v_load(columns.weight[j])));
    }
}

/* Point k of all channels, which are adjacent. */
static inline void grid_pixel(const grid_args *args, const grid_chunk *chunk, int64_t k, const float *x, float *out) {
  const int32_t taps = args->linear ? 4 : 1;
  for (int64_t c = 0; c < args->channels; c += 16) {
    const int64_t n = args->channels - c < 16 ? args->channels - c : 16;
    vf sum = v_set(0.0f);
    for (int32_t t = 0; t < taps; t++)
      if (chunk->counts[t][k])
        sum = v_add(sum, v_mul(load_lanes(x + chunk->offset[t][k] + c, 1, n), v_set(chunk->weight[t][k])));
    store_lanes(out + c, 1, n, sum);
  }
}

/* Some points of one channel. An element that does not count adds a zero, which does not change the sum. */
static inline __attribute__((always_inline)) void grid_line(const grid_args *args, const grid_chunk *chunk,
                                                            const int taps, const int whole, int64_t points,
                                                            const float *x, float *out) {
  for (int64_t k = 0; k < points; k++) {
    float sum = 0.0f;
    INGOT_UNROLL for (int t = 0; t < taps; t++) {
      const float read = x[chunk->offset[t][k]];
      sum += (whole || chunk->counts[t][k] ? read : 0.0f) * chunk->weight[t][k];
    }
    out[k * args->out_strides[2]] = sum;
  }
}

static inline void grid_lines(const grid_args *args, const grid_chunk *chunk, int64_t points, const float *x,
                              float *out) {
  for (int64_t c = 0; c < args->channels; c++, x += args->x_strides[1], out += args->out_strides[1])
    if (args->linear && chunk->whole)
      grid_line(args, chunk, 4, 1, points, x, out);
    else if (args->linear)
      grid_line(args, chunk, 4, 0, points, x, out);
    else
      grid_line(args, chunk, 1, 0, points, x, out);
}

void K(grid_sample_f32)(const void *p, int32_t task, int32_t num_tasks) {
  const grid_args *args = p;
  const int64_t end = task_begin(args->batch * args->points, task + 1, num_tasks);
  const int is_last = args->x_strides[1] == 1 && args->out_strides[1] == 1;
  int64_t count = 0;
  for (int64_t i = task_begin(args->batch * args->points, task, num_tasks); i < end; i += count) {
    const int64_t image = i / args->points, first = i % args->points;
    const float *x = args->x + image * args->x_strides[0], *grid = args->grid + 2 * i;
    float *out = args->out + image * args->out_strides[0] + first * args->out_strides[2];
    grid_chunk chunk;
    count = args->points - first < end - i ? args->points - first : end - i;
    if (count > GRID_POINTS) count = GRID_POINTS;
    chunk.whole = 1;
    for (int64_t k = 0; k < count; k += 16)
      grid_points(args, grid + 2 * k, count - k < 16 ? count - k : 16, &chunk, k);
    if (is_last)
      for (int64_t k = 0; k < count; k++) grid_pixel(args, &chunk, k, x, out + k * args->out_strides[2]);
    else
      grid_lines(args, &chunk, count, x, out);
  }
}

#undef GRID_POINTS
#undef GRID_FAR
