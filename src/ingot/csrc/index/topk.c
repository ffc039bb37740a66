/* topk.c: the k largest or smallest of rows of adjacent elements, in order, and their indices. Equal elements keep
 * their order; NaN is larger than any number. */
#include <string.h>

#include "kernel.h"

/* Sift down a key of a heap of `count`: no key is larger than those below it. */
static inline void topk_sink(uint64_t *keys, int64_t at, int64_t count) {
  const uint64_t key = keys[at];
  for (int64_t child = 2 * at + 1; child < count; child = 2 * at + 1) {
    child += child + 1 < count && keys[child + 1] < keys[child];
    if (key <= keys[child]) break;
    keys[at] = keys[child];
    at = child;
  }
  keys[at] = key;
}

static inline void topk_heap(uint64_t *keys, int64_t count) {
  for (int64_t i = count / 2; i-- > 0;) topk_sink(keys, i, count);
}

/* Sort a heap, the largest first. */
static inline void topk_sort_heap(uint64_t *keys, int64_t count) {
  for (int64_t i = count - 1; i > 0; i--) {
    const uint64_t last = keys[i];
    keys[i] = keys[0], keys[0] = last;
    topk_sink(keys, 0, i);
  }
}

static inline void topk_insert(uint64_t *keys, int64_t count) {
  for (int64_t i = 1; i < count; i++) {
    const uint64_t key = keys[i];
    int64_t at = i;
    for (; at > 0 && keys[at - 1] < key; at--) keys[at] = keys[at - 1];
    keys[at] = key;
  }
}

/* Partition the keys; no key before the returned index is smaller than one from it on; neither range is empty. */
static inline int64_t topk_split(uint64_t *keys, int64_t count) {
  const uint64_t a = keys[0], b = keys[count / 2], c = keys[count - 1];
  const uint64_t low = a < b ? a : b, high = a < b ? b : a, middle = c < low ? low : c < high ? c : high;
  int64_t i = -1, j = count;
  for (;;) {
    do i++; while (keys[i] > middle);
    do j--; while (keys[j] < middle);
    if (i >= j) return j + 1 < count ? j + 1 : j;
    const uint64_t key = keys[i];
    keys[i] = keys[j], keys[j] = key;
  }
}

/* Sort, the largest first. Ranges that do not shrink fast enough are sorted as heaps: Musser, "Introspective sorting
 * and selection algorithms", 1997. */
static inline void topk_sort(uint64_t *keys, int64_t count) {
  struct { uint64_t *keys; int64_t count; int32_t left; } waiting[64], range = {keys, count, 0};
  int32_t depth = 0;
  for (int64_t n = count; n > 1; n /= 2) range.left += 2;
  for (;;) {
    while (range.count > 16 && range.left > 0 && depth < 64) {
      const int64_t first = topk_split(range.keys, range.count);
      range.left--;
      waiting[depth] = range;
      waiting[depth].keys += first, waiting[depth++].count -= first;
      range.count = first;
    }
    if (range.count > 16) {
      topk_heap(range.keys, range.count);
      topk_sort_heap(range.keys, range.count);
    } else {
      topk_insert(range.keys, range.count);
    }
    if (!depth) return;
    range = waiting[--depth];
  }
}

/* The functions of one integer type: whether a row was sorted by keys, which have an element, and below it its index
 * counted from the end of the row. Keys are stored in the memory of the indices. With a small k, few elements need a
 * key. */
#define TOPK_KEYED(name, type)                                                                                         \
  static inline uint64_t K(name##_key)(type x, type last, int64_t index, int32_t bits, int32_t largest) {              \
    const uint64_t above = largest ? (uint64_t)x - (uint64_t)last : (uint64_t)last - (uint64_t)x;                      \
    return above << bits | (uint64_t)index;                                                                            \
  }                                                                                                                    \
                                                                                                                       \
  static inline int K(name##_keyed)(const type *x, type *out, int64_t *indices, int64_t cols, int64_t k,               \
                                    int32_t largest) {                                                                 \
    uint64_t *keys = (uint64_t *)indices;                                                                              \
    type low = x[0], high = x[0];                                                                                      \
    int32_t bits = 1;                                                                                                  \
    if (k < cols / 32) return 0;                                                                                       \
    for (int64_t i = 1; i < cols; i++) low = x[i] < low ? x[i] : low, high = x[i] > high ? x[i] : high;                \
    while (bits < 32 && cols > (int64_t)1 << bits) bits++;                                                             \
    if (((uint64_t)high - (uint64_t)low) >> (64 - bits)) return 0;                                                     \
    const type last = largest ? low : high;                                                                            \
    for (int64_t i = 0; i < k; i++) keys[i] = K(name##_key)(x[i], last, cols - 1 - i, bits, largest);                  \
    if (k < cols) topk_heap(keys, k);                                                                                  \
    for (int64_t i = k; i < cols; i++) {                                                                               \
      const uint64_t key = K(name##_key)(x[i], last, cols - 1 - i, bits, largest);                                     \
      if (key <= keys[0]) continue;                                                                                    \
      keys[0] = key;                                                                                                   \
      topk_sink(keys, 0, k);                                                                                           \
    }                                                                                                                  \
    topk_sort(keys, k);                                                                                                \
    for (int64_t i = 0; i < k; i++) {                                                                                  \
      indices[i] = cols - 1 - (int64_t)(keys[i] & (((uint64_t)1 << bits) - 1));                                        \
      out[i] = x[indices[i]];                                                                                          \
    }                                                                                                                  \
    return 1;                                                                                                          \
  }

TOPK_KEYED(topk_i64, int64_t)
TOPK_KEYED(topk_u64, uint64_t)

static inline int topk_f64_keyed(const double *x, double *out, int64_t *indices, int64_t cols, int64_t k,
                                 int32_t largest) {
  (void)x, (void)out, (void)indices, (void)cols, (void)k, (void)largest;
  return 0;
}

/* The functions of one 64-bit type, whose elements may be NaN: whether a comes before b, which is before it in the row;
 * whether entry a of a row comes before entry b in its result, an order without ties; sifting down an entry of a heap
 * of `count`, in which none comes before those below it.
 *
 * A row: a heap of the k best so far with the last of them on top, in the memory of the result, which is then sorted
 * from the end. Williams, "Algorithm 232: Heapsort", 1964. The kernel: `keyed` computes a row if it can. */
#define TOPK(name, type, keyed)                                                                                        \
  static inline int K(name##_before)(type a, type b, int32_t largest) {                                                \
    const int above = (a > b) | ((a != a) & (b == b)), below = (a < b) | ((a == a) & (b != b));                        \
    return largest ? above : below;                                                                                    \
  }                                                                                                                    \
                                                                                                                       \
  static inline int K(name##_entry_before)(const type *values, const int64_t *indices, int64_t a, int64_t b,           \
                                           int32_t largest) {                                                          \
    if (K(name##_before)(values[a], values[b], largest)) return 1;                                                     \
    return !K(name##_before)(values[b], values[a], largest) && indices[a] < indices[b];                                \
  }                                                                                                                    \
                                                                                                                       \
  static inline void K(name##_swap)(type *values, int64_t *indices, int64_t a, int64_t b) {                            \
    const type value = values[a];                                                                                      \
    const int64_t index = indices[a];                                                                                  \
    values[a] = values[b], indices[a] = indices[b];                                                                    \
    values[b] = value, indices[b] = index;                                                                             \
  }                                                                                                                    \
                                                                                                                       \
  static inline void K(name##_sink)(type *values, int64_t *indices, int64_t at, int64_t count, int32_t largest) {      \
    for (int64_t child = 2 * at + 1; child < count; at = child, child = 2 * at + 1) {                                  \
      if (child + 1 < count && K(name##_entry_before)(values, indices, child, child + 1, largest)) child++;            \
      if (!K(name##_entry_before)(values, indices, at, child, largest)) return;                                        \
      K(name##_swap)(values, indices, at, child);                                                                      \
    }                                                                                                                  \
  }                                                                                                                    \
                                                                                                                       \
  static inline void K(name##_row)(const type *x, type *out, int64_t *indices, int64_t cols, int64_t k,                \
                                   int32_t largest) {                                                                  \
    for (int64_t i = 0; i < k; i++) out[i] = x[i], indices[i] = i;                                                     \
    for (int64_t i = k / 2; i-- > 0;) K(name##_sink)(out, indices, i, k, largest);                                     \
    for (int64_t i = k, n; i < cols; i += n) {                                                                         \
      int found = cols - i < 16;                                                                                       \
      n = found ? cols - i : 16;                                                                                       \
      if (!found)                                                                                                      \
        for (int64_t j = 0; j < 16; j++) found |= K(name##_before)(x[i + j], out[0], largest);                         \
      for (int64_t j = i; found && j < i + n; j++) {                                                                   \
        if (!K(name##_before)(x[j], out[0], largest)) continue;                                                        \
        out[0] = x[j], indices[0] = j;                                                                                 \
        K(name##_sink)(out, indices, 0, k, largest);                                                                   \
      }                                                                                                                \
    }                                                                                                                  \
    for (int64_t i = k - 1; i > 0; i--) {                                                                              \
      K(name##_swap)(out, indices, 0, i);                                                                              \
      K(name##_sink)(out, indices, 0, i, largest);                                                                     \
    }                                                                                                                  \
  }                                                                                                                    \
                                                                                                                       \
  void K(name)(const void *p, int32_t task, int32_t num_tasks) {                                                       \
    const topk_args *args = p;                                                                                         \
    const int64_t end = task_begin(args->rows, task + 1, num_tasks), k = args->k;                                      \
    for (int64_t row = task_begin(args->rows, task, num_tasks); row < end && k > 0; row++) {                           \
      const type *x = (const type *)args->x + row * args->x_stride;                                                    \
      type *out = (type *)args->out + row * k;                                                                         \
      int64_t *indices = args->indices + row * k;                                                                      \
      if (!keyed(x, out, indices, args->cols, k, args->largest))                                                       \
        K(name##_row)(x, out, indices, args->cols, k, args->largest);                                                  \
    }                                                                                                                  \
  }

TOPK(topk_f64, double, topk_f64_keyed)
TOPK(topk_i64, int64_t, K(topk_i64_keyed))
TOPK(topk_u64, uint64_t, K(topk_u64_keyed))

/* An element of f32 and its index as one number: the earlier an entry is in the result, the larger. Zeros are equal,
 * and so are NaN. */
static inline uint64_t topk_key(float x, int64_t index, int32_t largest) {
  const float plain = x + 0.0f;
  uint32_t bits;
  memcpy(&bits, &plain, sizeof bits);
  bits = x != x ? UINT32_MAX : bits >> 31 ? ~bits : bits | 1u << 31;
  return (uint64_t)(largest ? bits : ~bits) << 32 | (uint32_t)~(uint32_t)index;
}

static inline int64_t topk_index(uint64_t key) { return (uint32_t)~(uint32_t)key; }

/* Whether any of 1 <= n <= 16 elements comes before `last`, which precedes them in the row. */
static inline int topk_any_before(const float *x, int64_t n, float last, int32_t largest) {
  float lanes[16];
  for (int64_t i = 0; n < 16 && i < 16; i++) lanes[i] = i < n ? x[i] : x[0];
  const vf found = v_load(n < 16 ? lanes : x);
  if (last != last) return !largest && v_any(v_eq(found, found));
  return largest ? v_any(v_lt(v_set(last), found)) || v_any(v_isnan(found)) : v_any(v_lt(found, v_set(last)));
}

/* The keys of a row are stored in the memory of its indices: the k best so far are a heap with the last of them on
 * top. */
void K(topk_f32)(const void *p, int32_t task, int32_t num_tasks) {
  const topk_args *args = p;
  const int64_t end = task_begin(args->rows, task + 1, num_tasks), k = args->k, cols = args->cols;
  const int32_t largest = args->largest;
  for (int64_t row = task_begin(args->rows, task, num_tasks); row < end && k > 0; row++) {
    const float *x = (const float *)args->x + row * args->x_stride;
    float *out = (float *)args->out + row * k;
    uint64_t *keys = (uint64_t *)args->indices + row * k;
    for (int64_t i = 0; i < k; i++) keys[i] = topk_key(x[i], i, largest);
    if (k < cols) topk_heap(keys, k);
    for (int64_t i = k, n; i < cols; i += n) {
      n = cols - i < 16 ? cols - i : 16;
      if (!topk_any_before(x + i, n, x[topk_index(keys[0])], largest)) continue;
      for (int64_t j = i; j < i + n; j++) {
        const uint64_t key = topk_key(x[j], j, largest);
        if (key <= keys[0]) continue;
        keys[0] = key;
        topk_sink(keys, 0, k);
      }
    }
    topk_sort(keys, k);
    for (int64_t i = 0; i < k; i++) {
      const int64_t index = topk_index(keys[i]);
      args->indices[row * k + i] = index;
      out[i] = x[index];
    }
  }
}

#undef TOPK
#undef TOPK_KEYED
