/* trees.c: the votes of ensembles of decision trees. Several walks, each of a row down a tree, are interleaved step by
 * step, so that one walk's loads overlap with the others. An invalid number in the tables is reported as the run's
 * fault when a row reaches it, and that row has no further votes in that tree. */
#include <string.h>

#include "kernel.h"

#define TREE_WALKS 16 /* that are interleaved */

/* Whether 0 <= number < count; reports a fault otherwise. */
static inline int tree_has(const tree_args *args, int64_t number, int64_t count) {
  if (number >= 0 && number < count) return 1;
  report_fault(args->fault, 2, args->step, number, count);
  return 0;
}

/* The f32 that is stored in a node. */
static inline float tree_split(const int32_t *node) {
  float split;
  memcpy(&split, node + 3, sizeof split);
  return split;
}

/* The leaf of a negative index. */
#define TREE_LEAF(index) (-1 - (index))

/* The functions of one type. An index from 0 on is a node, one below 0 a leaf; a walk with a fault ends at the leaf
 * with number args->leaf_count. of_node: the number that a node compares with.
 *
 * Walks of `trees` trees from `tree` on by `rows` rows are interleaved; then the votes of each row are added, tree
 * after tree. */
#define TREES(name, type, of_node)                                                                                     \
  static inline int K(name##_is_member)(const tree_args *args, int64_t index, type x) {                                \
    int found = 0;                                                                                                     \
    for (int64_t i = args->sets[2 * index]; i < args->sets[2 * index + 1]; i++) {                                      \
      if (!tree_has(args, i, args->member_count)) break;                                                               \
      found |= ((const type *)args->members)[i] == x;                                                                  \
    }                                                                                                                  \
    return found;                                                                                                      \
  }                                                                                                                    \
                                                                                                                       \
  static inline int K(name##_holds)(const tree_args *args, int64_t index, type x, type split) {                        \
    switch (args->nodes[4 * index] % 8) {                                                                              \
      case 0: return x <= split;                                                                                       \
      case 1: return x < split;                                                                                        \
      case 2: return x >= split;                                                                                       \
      case 3: return x > split;                                                                                        \
      case 4: return x == split;                                                                                       \
      case 5: return x != split;                                                                                       \
      default: return K(name##_is_member)(args, index, x);                                                             \
    }                                                                                                                  \
  }                                                                                                                    \
                                                                                                                       \
  static inline int64_t K(name##_next)(const tree_args *args, int64_t index, const type *x) {                          \
    const int32_t *node = args->nodes + 4 * index;                                                                     \
    if (!tree_has(args, index, args->node_count)) return TREE_LEAF(args->leaf_count);                                  \
    const int32_t feature = node[0] >> 4, kind = node[0] & 15;                                                         \
    if (!tree_has(args, feature, args->features)) return TREE_LEAF(args->leaf_count);                                  \
    const type value = x[feature], split = of_node;                                                                    \
    const int holds = kind == 0 ? value <= split                                                                       \
                                : K(name##_holds)(args, index, value, split) | (value != value && kind >= 8);          \
    return node[2 - holds];                                                                                            \
  }                                                                                                                    \
                                                                                                                       \
  static inline void K(name##_vote)(const tree_args *args, int64_t leaf, int64_t row) {                                \
    type *out = (type *)args->out + row * args->target_count;                                                          \
    uint8_t *voted = args->voted ? args->voted + row * args->target_count : NULL;                                      \
    if (!tree_has(args, leaf, args->leaf_count)) return;                                                               \
    for (int64_t i = args->leaves[2 * leaf]; i < args->leaves[2 * leaf + 1]; i++) {                                    \
      if (!tree_has(args, i, args->vote_count) || !tree_has(args, args->targets[i], args->target_count)) return;       \
      const int64_t target = args->targets[i];                                                                         \
      const type vote = ((const type *)args->weights)[i] / (type)args->divisor, found = out[target];                   \
      const int less = vote < found || vote != vote, more = vote > found || vote != vote;                              \
      if (!voted)                                                                                                      \
        out[target] = found + vote;                                                                                    \
      else if (!voted[target] || (found == found && (args->merge == INGOT_MERGE_min ? less : more)))                   \
        out[target] = vote;                                                                                            \
      if (voted) voted[target] = 1;                                                                                    \
    }                                                                                                                  \
  }                                                                                                                    \
                                                                                                                       \
  static inline void K(name##_walk)(const tree_args *args, int64_t tree, int64_t trees, int64_t row, int64_t rows) {   \
    int64_t index[TREE_WALKS], walking = 1;                                                                            \
    for (int64_t t = 0, i = 0; t < trees; t++)                                                                         \
      for (int64_t r = 0; r < rows; r++) index[i++] = args->roots[tree + t];                                           \
    for (int64_t steps = 0; walking; steps++) {                                                                        \
      walking = 0;                                                                                                     \
      for (int64_t t = 0, i = 0; t < trees; t++) {                                                                     \
        const type *x = (const type *)args->x + row * args->x_stride;                                                  \
        for (int64_t r = 0; r < rows; r++, i++, x += args->x_stride) {                                                 \
          if (index[i] < 0) continue;                                                                                  \
          walking = tree_has(args, steps, args->node_count);                                                           \
          index[i] = walking ? K(name##_next)(args, index[i], x) : TREE_LEAF(args->leaf_count);                        \
        }                                                                                                              \
      }                                                                                                                \
    }                                                                                                                  \
    for (int64_t t = 0, i = 0; t < trees; t++)                                                                         \
      for (int64_t r = 0; r < rows; r++) K(name##_vote)(args, TREE_LEAF(index[i++]), row + r);                         \
  }                                                                                                                    \
                                                                                                                       \
  void K(name)(const void *p, int32_t task, int32_t num_tasks) {                                                       \
    const tree_args *args = p;                                                                                         \
    const int64_t begin = task_begin(args->rows, task, num_tasks), end = task_begin(args->rows, task + 1, num_tasks);  \
    const int64_t last = begin + (end - begin) / TREE_WALKS * TREE_WALKS, rest = end - last;                           \
    const int64_t together = rest ? TREE_WALKS / rest : 1;                                                             \
    for (int64_t i = begin * args->target_count; i < end * args->target_count; i++) {                                  \
      ((type *)args->out)[i] = 0;                                                                                      \
      if (args->voted) args->voted[i] = 0;                                                                             \
    }                                                                                                                  \
    for (int64_t tree = 0; tree < args->tree_count; tree++)                                                            \
      for (int64_t row = begin; row < last; row += TREE_WALKS) K(name##_walk)(args, tree, 1, row, TREE_WALKS);         \
    for (int64_t tree = 0; rest && tree < args->tree_count; tree += together) {                                        \
      const int64_t left = args->tree_count - tree;                                                                    \
      K(name##_walk)(args, tree, left < together ? left : together, last, rest);                                       \
    }                                                                                                                  \
  }

TREES(tree_ensemble_f32, float, tree_split(node))
TREES(tree_ensemble_f64, double, ((const double *)args->splits)[index])

#undef TREES
#undef TREE_LEAF
#undef TREE_WALKS
