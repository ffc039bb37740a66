/* norm_gradient.c: the gradients of layer_norm and rms_norm, for rows of adjacent elements. The gradients of weight and
 * bias are sums over rows: in a first iteration of blocks of INGOT_K_BLOCK rows, each from zero and row by row, and in
 * a second iteration of these blocks, in order. So neither the number of tasks nor batches of whole blocks change
 * them. */
#include "kernel.h"
#include "reduce/norm.h"
#include "math/vmath.h"

/* The normalisation of a row: normal = (x - high) scale + shift. */
typedef struct { vf high, scale, shift; } norm_back_norm;

/* 16 elements, or the first n and zeros. */
static inline vf norm_back_load(const float *p, int64_t n) { return n < 16 ? v_load_n(p, n) : v_load(p); }

static inline void norm_back_store(float *p, vf v, int64_t n) {
  if (n < 16)
    v_store_n(p, v, n);
  else
    v_store(p, v);
}

/* The sum of x - centre over a row, or of its squares: in chunks of 16 lanes. */
static inline float norm_back_sum(const float *x, int64_t cols, float centre, int squares) {
  float total = 0;
  const vf c = v_set(centre);
  for (int64_t begin = 0; begin < cols; begin += INGOT_REDUCE_CHUNK) {
    const int64_t end = cols - begin < INGOT_REDUCE_CHUNK ? cols : begin + INGOT_REDUCE_CHUNK;
    vf sum = v_set(0);
    for (int64_t i = begin; i < end; i += 16) {
      vf v = v_sub(norm_back_load(x + i, end - i), c);
      if (end - i < 16) v = v_below(end - i, v, 0);
      sum = squares ? v_fma(v, v, sum) : v_add(sum, v);
    }
    total = begin ? total + v_sum(sum) : v_sum(sum);
  }
  return total;
}

static inline norm_back_norm norm_back_norm_of(const float *x, int64_t cols, float eps, int centred) {
  const vf count = v_set((float)cols);
  norm_centre centre = {v_set(0), v_set(0)};
  float high = 0;
  if (centred) {
    const float pivot = norm_pivot(x, cols);
    centre = norm_centre_of(v_set(pivot), v_div(v_set(norm_back_sum(x, cols, pivot, 0)), count));
    v_store_n(&high, centre.high, 1);
  }
  const vf scale = norm_scale(v_set(norm_back_sum(x, cols, high, 1)), centre.low, count, v_set(eps));
  return (norm_back_norm){centre.high, scale, centred ? norm_shift(centre.low, scale) : v_set(-0.0f)};
}

static inline vf norm_back_normal(const norm_back_norm *n, vf x) {
  return v_fma(v_sub(x, n->high), n->scale, n->shift);
}

/* The means over a row of d weight, and of d weight normal. */
typedef struct { float d, along; } norm_back_means;

static inline norm_back_means norm_back_means_of(const norm_gradient_args *g, const norm_back_norm *n,
                                                 const float *x, const float *d) {
  norm_back_means total = {0, 0};
  for (int64_t begin = 0; begin < g->cols; begin += INGOT_REDUCE_CHUNK) {
    const int64_t end = g->cols - begin < INGOT_REDUCE_CHUNK ? g->cols : begin + INGOT_REDUCE_CHUNK;
    vf sum = v_set(0), along = v_set(0);
    for (int64_t i = begin; i < end; i += 16) {
      const int64_t lanes = end - i;
      /* zeros after the end of the row */
      const vf weighed = v_mul(norm_back_load(d + i, lanes), norm_back_load(g->weight + i, lanes));
      sum = v_add(sum, weighed);
      along = v_fma(weighed, norm_back_normal(n, norm_back_load(x + i, lanes)), along);
    }
    total.d = begin ? total.d + v_sum(sum) : v_sum(sum);
    total.along = begin ? total.along + v_sum(along) : v_sum(along);
  }
  return (norm_back_means){total.d / (float)g->cols, total.along / (float)g->cols};
}

/* One row: dx, and its contribution to the gradients of weight and bias. */
static inline void norm_back_row(const norm_gradient_args *g, int64_t row, int centred, float *weight, float *bias) {
  const float *x = g->x + row * g->x_stride, *d = g->d + row * g->d_stride;
  float *dx = g->dx + row * g->dx_stride;
  const norm_back_norm n = norm_back_norm_of(x, g->cols, g->eps, centred);
  const norm_back_means means = norm_back_means_of(g, &n, x, d);
  const vf mean = v_set(centred ? means.d : 0.0f), along = v_set(means.along);
  for (int64_t i = 0; i < g->cols; i += 16) {
    const int64_t lanes = g->cols - i;
    const vf normal = norm_back_normal(&n, norm_back_load(x + i, lanes)), given = norm_back_load(d + i, lanes);
    const vf weighed = v_mul(given, norm_back_load(g->weight + i, lanes));
    const vf rest = v_sub(v_sub(weighed, mean), v_mul(normal, along));
    norm_back_store(weight + i, v_fma(given, normal, norm_back_load(weight + i, lanes)), lanes);
    if (centred) norm_back_store(bias + i, v_add(norm_back_load(bias + i, lanes), given), lanes);
    norm_back_store(dx + i, v_mul(rest, n.scale), lanes);
  }
}

static inline void norm_back_rows(const norm_gradient_args *g, int centred, int32_t task, int32_t num_tasks) {
  const int64_t blocks = (g->rows + INGOT_K_BLOCK - 1) / INGOT_K_BLOCK, vectors = centred ? 2 : 1;
  if (task < num_tasks) {
    const int64_t end = task_begin(blocks, task + 1, num_tasks);
    for (int64_t block = task_begin(blocks, task, num_tasks); block < end; block++) {
      float *weight = g->partial + block * vectors * g->cols, *bias = weight + g->cols;
      const int64_t last = (block + 1) * INGOT_K_BLOCK < g->rows ? (block + 1) * INGOT_K_BLOCK : g->rows;
      for (int64_t i = 0; i < vectors * g->cols; i++) weight[i] = 0;
      for (int64_t row = block * INGOT_K_BLOCK; row < last; row++) norm_back_row(g, row, centred, weight, bias);
    }
    return;
  }
  const int64_t end = task_begin(g->cols, task - num_tasks + 1, num_tasks);
  for (int64_t i = task_begin(g->cols, task - num_tasks, num_tasks); i < end; i++) {
    float weight = 0, bias = 0;
    for (int64_t block = 0; block < blocks; block++) {
      const float *partial = g->partial + block * vectors * g->cols + i;
      weight = block ? weight + partial[0] : partial[0];
      if (centred) bias = block ? bias + partial[g->cols] : partial[g->cols];
    }
    g->dweight[i] = weight;
    if (centred) g->dbias[i] = bias;
  }
}

void K(layer_norm_gradient_f32)(const void *p, int32_t task, int32_t num_tasks) {
  norm_back_rows(p, 1, task, num_tasks);
}
void K(rms_norm_gradient_f32)(const void *p, int32_t task, int32_t num_tasks) {
  norm_back_rows(p, 0, task, num_tasks);
}
