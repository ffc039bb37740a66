/* trees.c: the votes of ensembles of decision trees. Rows are walked tree by tree, some of them step by step together,
 * so that one waits while others go on. A number in the tables of something that is not there goes to the run's fault
 * slot when a row meets it, and that row votes no further in that tree. */
#include "kernel.h"

#define TREE_ROWS 16   /* that are walked together */
#define TREE_COLUMNS 7 /* of nodes: feature, comparison, next where it holds, where not, NaN, first and end of a set */

/* Whether `number` is one of `count`; if not, that is a fault. */
static inline int tree_has(const tree_args *args, int64_t number, int64_t count) {
  if (number >= 0 && number < count) return 1;
  report_fault(args->fault, 2, args->step, number, count);
  return 0;
}

/* What follows when a place in a tree is no node. */
#define TREE_LEAF(place) (-1 - (place))

/* The functions of one type. A place is a node, or below 0 a leaf; one that is lost has none, and is args->leaf_count
 * leaves behind the first. */
#define TREES(name, type)                                                                                          \
  static inline int K(name##_holds)(const tree_args *args, const int64_t *node, type x, type split) {              \
    int found = 0;                                                                                                 \
    switch (node[1]) {                                                                                             \
      case 0: found = x <= split; break;                                                                           \
      case 1: found = x < split; break;                                                                            \
      case 2: found = x >= split; break;                                                                           \
      case 3: found = x > split; break;                                                                            \
      case 4: found = x == split; break;                                                                           \
      case 5: found = x != split; break;                                                                           \
      default:                                                                                                     \
        for (int64_t i = node[5]; i < node[6] && tree_has(args, i, args->member_count); i++)                       \
          found |= ((const type *)args->members)[i] == x;                                                          \
    }                                                                                                              \
    return found || (x != x && node[4]);                                                                           \
  }                                                                                                                \
                                                                                                                   \
  static inline int64_t K(name##_next)(const tree_args *args, int64_t place, const type *x) {                      \
    const int64_t *node = args->nodes + place * TREE_COLUMNS, lost = TREE_LEAF(args->leaf_count);                  \
    if (!tree_has(args, node[0], args->features)) return lost;                                                     \
    const int64_t next = node[3 - K(name##_holds)(args, node, x[node[0]], ((const type *)args->splits)[place])];   \
    return next < 0 || tree_has(args, next, args->node_count) ? next : lost;                                       \
  }                                                                                                                \
                                                                                                                   \
  static inline void K(name##_vote)(const tree_args *args, int64_t leaf, type *out) {                              \
    if (!tree_has(args, leaf, args->leaf_count)) return;                                                           \
    for (int64_t i = args->leaves[2 * leaf]; i < args->leaves[2 * leaf + 1]; i++) {                                \
      if (!tree_has(args, i, args->vote_count) || !tree_has(args, args->targets[i], args->target_count)) return;   \
      out[args->targets[i]] += ((const type *)args->weights)[i] / (type)args->divisor;                             \
    }                                                                                                              \
  }                                                                                                                \
                                                                                                                   \
  static inline void K(name##_rows)(const tree_args *args, int64_t root, const type *x, int64_t rows, type *out) { \
    int64_t place[TREE_ROWS], walking = root >= 0, steps = 0;                                                      \
    for (int64_t row = 0; row < rows; row++) place[row] = root;                                                    \
    for (; walking && tree_has(args, steps, args->node_count); steps++) {                                          \
      walking = 0;                                                                                                 \
      for (int64_t row = 0; row < rows; row++) {                                                                   \
        if (place[row] < 0) continue;                                                                              \
        place[row] = K(name##_next)(args, place[row], x + row * args->x_stride);                                   \
        walking |= place[row] >= 0;                                                                                \
      }                                                                                                            \
    }                                                                                                              \
    for (int64_t row = 0; row < rows; row++)                                                                       \
      if (place[row] < 0) K(name##_vote)(args, TREE_LEAF(place[row]), out + row * args->target_count);             \
  }                                                                                                                \
                                                                                                                   \
  void K(name)(const void *p, int32_t part, int32_t parts) {                                                       \
    const tree_args *args = p;                                                                                     \
    const int64_t begin = part_begin(args->rows, part, parts), end = part_begin(args->rows, part + 1, parts);      \
    type *out = args->out;                                                                                         \
    for (int64_t i = begin * args->target_count; i < end * args->target_count; i++) out[i] = 0;                    \
    for (int64_t tree = 0; tree < args->tree_count; tree++) {                                                      \
      const int64_t root = args->roots[tree];                                                                      \
      if (root >= 0 && !tree_has(args, root, args->node_count)) continue;                                          \
      for (int64_t row = begin; row < end; row += TREE_ROWS)                                                       \
        K(name##_rows)(args, root, (const type *)args->x + row * args->x_stride,                                   \
                       end - row < TREE_ROWS ? end - row : TREE_ROWS, out + row * args->target_count);             \
    }                                                                                                              \
  }

TREES(tree_ensemble_f32, float)
TREES(tree_ensemble_f64, double)

#undef TREES
#undef TREE_LEAF
#undef TREE_COLUMNS
#undef TREE_ROWS
