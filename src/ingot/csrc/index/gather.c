/* gather.c: rows and elements of a table by run-time index, 16-bit elements also as floats, and weighted sums of rows.
 * An index outside [-limit, limit), for sums outside [0, limit), is reported as the run's fault. */
#include <string.h>

#include "math/bf16.h"
#include "quant/blocks.h"
#include "math/f16.h"
#include "index/index.h"
#include "kernel.h"
#include "elementwise/strided.h"

#define BLOCKS_W uint32_t
#include "quant/blocks_quads.inc"

static inline int64_t gather_row(const gather_args *args, int64_t i) {
  return index_from_front(args->fault, args->step, index_at(args->indices, args->index_bytes, i), args->limit);
}

/* Rows of a table, one after the other; `bytes` is a constant where rows are single elements. */
#define GATHER(name, index_type)                                                                                       \
  static inline void K(name##_rows)(const gather_args *args, const index_type *indices, int64_t count,                 \
                                    const char *table, char *out, int64_t bytes) {                                     \
    for (int64_t i = 0; i < count; i++) {                                                                              \
      int64_t row = index_from_front(args->fault, args->step, indices[i], args->limit);                                \
      if (row < 0)                                                                                                     \
        memset(out + i * bytes, 0, (size_t)bytes);                                                                     \
      else                                                                                                             \
        memcpy(out + i * bytes, table + row * bytes, (size_t)bytes);                                                   \
    }                                                                                                                  \
  }                                                                                                                    \
                                                                                                                       \
  void K(name)(const void *p, int32_t task, int32_t num_tasks) {                                                       \
    const gather_args *args = p;                                                                                       \
    int64_t bytes = args->inner * args->item_bytes, items = args->outer * args->count, count = 0;                      \
    int64_t end = task_begin(items, task + 1, num_tasks);                                                              \
    for (int64_t i = task_begin(items, task, num_tasks); i < end; i += count) {                                        \
      const int64_t first = i % args->count;                                                                           \
      count = args->count - first < end - i ? args->count - first : end - i;                                           \
      const index_type *indices = (const index_type *)args->indices + first;                                           \
      const char *table = (const char *)args->table + i / args->count * args->limit * bytes;                           \
      char *out = (char *)args->out + i * bytes;                                                                       \
      if (bytes == 4)                                                                                                  \
        K(name##_rows)(args, indices, count, table, out, 4);                                                           \
      else if (bytes == 8)                                                                                             \
        K(name##_rows)(args, indices, count, table, out, 8);                                                           \
      else                                                                                                             \
        K(name##_rows)(args, indices, count, table, out, bytes);                                                       \
    }                                                                                                                  \
  }

GATHER(gather_i64, int64_t)
GATHER(gather_i32, int32_t)

/* `element` is the expression of element k of row `row` of the table; each row has `inner` elements. */
#define GATHER_FLOATS(name, element_type, element)                                                                     \
  void K(name)(const void *p, int32_t task, int32_t num_tasks) {                                                       \
    const gather_args *args = p;                                                                                       \
    const element_type *table = args->table;                                                                           \
    int64_t inner = args->inner, end = task_begin(args->count, task + 1, num_tasks);                                   \
    for (int64_t i = task_begin(args->count, task, num_tasks); i < end; i++) {                                         \
      int64_t row = gather_row(args, i);                                                                               \
      float *out = (float *)args->out + i * inner;                                                                     \
      if (row < 0)                                                                                                     \
        memset(out, 0, (size_t)inner * sizeof(float));                                                                 \
      else                                                                                                             \
        for (int64_t k = 0; k < inner; k++) out[k] = element;                                                          \
    }                                                                                                                  \
  }

GATHER_FLOATS(gather_bf16, uint16_t, bf16_to_float(table[row * inner + k]))
GATHER_FLOATS(gather_f16, uint16_t, f16_to_float(table[row * inner + k]))

/* Row r of the table is column r % 32 of panel r / 32. A panel is [inner][32], for bf16 [ceil(inner / 2)][32][2], for
 * f16 [inner, rounded up to even][32]. */
GATHER_FLOATS(gather_f32_panels, float, table[(row / INGOT_PANEL * inner + k) * INGOT_PANEL + row % INGOT_PANEL])
GATHER_FLOATS(gather_bf16_panels, uint16_t,
              bf16_to_float(table[((row / INGOT_PANEL * ((inner + 1) / 2) + k / 2) * INGOT_PANEL + row % INGOT_PANEL)
                                  * 2 + k % 2]))
GATHER_FLOATS(gather_f16_panels, uint16_t,
              f16_to_float(table[(row / INGOT_PANEL * ((inner + 1) / 2 * 2) + k) * INGOT_PANEL + row % INGOT_PANEL]))

static inline float gather_half(const uint8_t *at) {
  uint16_t half;
  memcpy(&half, at, sizeof half);
  return f16_to_float(half);
}

static inline float gather_bf16_at(const uint8_t *at) {
  uint16_t half;
  memcpy(&half, at, sizeof half);
  return bf16_to_float(half);
}

/* Element k of a row of a table in panels of quantized weights. */
static inline float gather_quant(const uint8_t *table, int64_t row, int64_t k, int64_t inner, const int bits,
                                const int zeros, const int span, const int scale_bytes) {
  const int64_t blocks = (inner + INGOT_QUANT_BLOCK - 1) / INGOT_QUANT_BLOCK, column = row % INGOT_PANEL;
  const int64_t block = k / INGOT_QUANT_BLOCK, first = block - block % span;
  const int64_t shared = blocks - first < span ? blocks - first : span, code_bytes = INGOT_PANEL * 4 * bits;
  const uint8_t *panel = table + row / INGOT_PANEL * quant_bytes(blocks, bits, zeros, span, scale_bytes);
  const uint8_t *qweight = panel + quant_bytes(first, bits, zeros, span, scale_bytes);
  const uint8_t *scales = qweight + shared * code_bytes, *scale = scales + scale_bytes * column;
  const int64_t at = k % INGOT_QUANT_BLOCK % (4 * bits), upper = k % INGOT_QUANT_BLOCK / (4 * bits);
  const int code = qweight[(block - first) * code_bytes + (at / 4 * INGOT_PANEL + column) * 4 + at % 4];
  const int zero = (zeros ? scales[scale_bytes * INGOT_PANEL + column] : 128) >> (8 - bits);
  const float steps = (float)((bits == 8 ? code : upper ? code >> 4 : code & 15) - zero);
  if (scale_bytes == QUANT_F16) return steps * gather_half(scale);
  float wide;
  memcpy(&wide, scale, sizeof wide);
  return steps * wide;
}

#define QUANT_FORMAT(name, ...)                                                                                        \
  GATHER_FLOATS(gather_##name##_panels, uint8_t, gather_quant(table, row, k, inner, __VA_ARGS__, QUANT_F16))           \
  GATHER_FLOATS(gather_##name##_f32_panels, uint8_t, gather_quant(table, row, k, inner, __VA_ARGS__, QUANT_F32))
#define QUANT_ROW_FORMAT(name, ...)                                                                                    \
  GATHER_FLOATS(gather_##name##_panels, uint8_t, gather_quant(table, row, k, inner, __VA_ARGS__, QUANT_F16))
#include "weight_formats.def"

/* Word i of a column; words are a panel's row apart. */
static inline uint32_t gather_word(const uint8_t *words, int64_t i) {
  uint32_t word;
  memcpy(&word, words + 4 * INGOT_PANEL * i, sizeof word);
  return word;
}

/* Element k of a row of a table in panels of GGUF blocks, rounded in the steps that the type defines. */
static inline __attribute__((always_inline)) float gather_block(const uint8_t *table, int64_t row, int64_t k,
                                                                int64_t inner, const blocks_type t) {
  const int64_t column = row % INGOT_PANEL, position = k % t.elements, four = position / t.part / 4;
  const uint8_t *block = table + (row / INGOT_PANEL * (inner / t.elements) + k / t.elements) * INGOT_PANEL * t.packed;
  const uint8_t *qweight = block + blocks_head(t) + 4 * column + position / 32 * 4 * INGOT_PANEL * t.bits;
  const uint8_t *halves = block + INGOT_PANEL * t.scale_bytes + 2 * column;
  const int q = (int)(position % 32 / 4), shift = 8 * (int)(position % 4);
  const uint32_t high = t.bits % 2 || t.bits > 4 ? gather_word(qweight, blocks_high_word(t.bits, q)) : 0;
  const int code = blocks_quant(t.bits, gather_word(qweight, blocks_low_word(t.bits, q)), high, q) >> shift & 255;
  const float x = (float)((t.steps ? blocks_steps[t.steps][code] : code) - t.offset);
  const float d = t.steps == BLOCKS_FP4 ? gather_bf16_at(halves) : gather_half(halves);
  const float m = t.has_m ? gather_half(halves + 2 * INGOT_PANEL) : 0.0f;
  if (t.held == BLOCKS_ALONE) return t.has_m ? x * d + m : x * d;
  uint32_t words[4] = {0};
  for (int i = 0; i < t.scale_bytes / 4; i++) words[i] = gather_word(block + 4 * column, i);
  if (t.held == BLOCKS_HALVES) {
    uint16_t upper;
    memcpy(&upper, block + 4 * INGOT_PANEL + 2 * column, sizeof upper);
    words[1] = upper;
  }
  const int bit = 8 * (int)(position / t.part % 4);
  const float scaled = x * (d * (float)(int8_t)(blocks_scales(t.held, words, (int)four) >> bit));
  return t.has_m ? scaled - m * (float)(int8_t)(blocks_mins(t.held, words, (int)four) >> bit) : scaled;
}

#define BLOCK_TYPE(name, ...)                                                                                          \
  GATHER_FLOATS(gather_##name##_panels, uint8_t, gather_block(table, row, k, inner, blocks_##name()))
#include "weight_formats.def"

/* `count` elements of the result from its element i on, all of one row; x is read at `offset` and then every `step`
 * elements; `bytes` is a constant where that is faster. */
static inline void gather_elements_row(const gather_elements_args *args, int64_t i, int64_t count, int64_t offset,
                                       int64_t step, int64_t bytes) {
  const int64_t *indices = (const int64_t *)args->indices + i, stride = args->x_strides[args->axis];
  char *out = (char *)args->out + i * bytes;
  for (int64_t j = 0; j < count; j++) {
    const int64_t index = index_from_front(args->fault, args->step, indices[j], args->limit);
    if (index < 0)
      memset(out + j * bytes, 0, (size_t)bytes);
    else
      memcpy(out + j * bytes, (const char *)args->x + (offset + j * step + index * stride) * bytes, (size_t)bytes);
  }
}

void K(gather_elements_i64)(const void *p, int32_t task, int32_t num_tasks) {
  const gather_elements_args *args = p;
  const int32_t last = args->rank - 1;
  int64_t items = 1, count = 0;
  for (int32_t d = 0; d < args->rank; d++) items *= args->shape[d];
  const int64_t end = task_begin(items, task + 1, num_tasks), step = args->axis == last ? 0 : args->x_strides[last];
  for (int64_t i = task_begin(items, task, num_tasks); i < end; i += count) {
    const int64_t first = i % args->shape[last];
    int64_t offset = first * step, rest = i / args->shape[last];
    count = args->shape[last] - first < end - i ? args->shape[last] - first : end - i;
    for (int32_t d = last - 1; d >= 0; d--) {
      if (d != args->axis) offset += rest % args->shape[d] * args->x_strides[d];
      rest /= args->shape[d];
    }
    if (args->item_bytes == 4)
      gather_elements_row(args, i, count, offset, step, 4);
    else
      gather_elements_row(args, i, count, offset, step, args->item_bytes);
  }
}

#undef GATHER
#undef GATHER_FLOATS
#undef BLOCKS_W

void K(checked_index)(const void *p, int32_t task, int32_t num_tasks) {
  const checked_index_args *args = p;
  const int64_t end = task_begin(args->count, task + 1, num_tasks);
  for (int64_t i = task_begin(args->count, task, num_tasks); i < end; i++) {
    int64_t index = index_at(args->x, args->index_bytes, i);
    if (args->wraps)
      index = index_from_front(args->fault, args->step, index, args->limit);
    else if (index < 0 || index >= args->limit)
      report_fault(args->fault, 2, args->step, index, args->limit);
    if (args->index_bytes == 8)
      ((int64_t *)args->out)[i] = index;
    else
      ((int32_t *)args->out)[i] = (int32_t)index;
  }
}

/* Whether all indices of the window samples are in [0, limit). */
static inline int resample_fits(const resample_args *args) {
  for (int64_t i = 0; i < args->count * args->taps; i++)
    if (args->indices[i] < 0 || args->indices[i] >= args->limit) {
      report_fault(args->fault, 2, args->step, args->indices[i], args->limit);
      return 0;
    }
  return 1;
}

/* One output position of one row: `inner` sums, each over the window samples in order. */
static inline void resample_position(const resample_args *args, const float *x, int64_t position, float *out) {
  const int64_t *indices = args->indices + position * args->taps;
  const float *weights = args->weights + position * args->taps;
  for (int64_t k = 0; k < args->inner; k += 16) {
    int64_t n = args->inner - k < 16 ? args->inner - k : 16;
    vf sum = v_mul(load_lanes(x + indices[0] * args->inner + k, 1, n), v_set(weights[0]));
    for (int64_t j = 1; j < args->taps; j++)
      sum = v_add(sum, v_mul(load_lanes(x + indices[j] * args->inner + k, 1, n), v_set(weights[j])));
    store_lanes(out + k, 1, n, sum);
  }
}

/* A row of single elements. */
static inline void resample_line(const resample_args *args, const float *x, float *out) {
  const int64_t *indices = args->indices;
  const float *weights = args->weights;
  if (args->taps == 2) {
    for (int64_t i = 0; i < args->count; i++)
      out[i] = x[indices[2 * i]] * weights[2 * i] + x[indices[2 * i + 1]] * weights[2 * i + 1];
    return;
  }
  for (int64_t i = 0; i < args->count; i++, indices += args->taps, weights += args->taps) {
    float sum = x[indices[0]] * weights[0];
    for (int64_t j = 1; j < args->taps; j++) sum += x[indices[j]] * weights[j];
    out[i] = sum;
  }
}

void K(resample_f32)(const void *p, int32_t task, int32_t num_tasks) {
  const resample_args *args = p;
  if (!resample_fits(args)) return;
  if (args->inner == 1) {
    int64_t end = task_begin(args->outer, task + 1, num_tasks);
    for (int64_t i = task_begin(args->outer, task, num_tasks); i < end; i++)
      resample_line(args, args->x + i * args->limit, args->out + i * args->count);
    return;
  }
  int64_t end = task_begin(args->outer * args->count, task + 1, num_tasks);
  for (int64_t i = task_begin(args->outer * args->count, task, num_tasks); i < end; i++) {
    const float *x = args->x + i / args->count * args->limit * args->inner;
    resample_position(args, x, i % args->count, args->out + i * args->inner);
  }
}
