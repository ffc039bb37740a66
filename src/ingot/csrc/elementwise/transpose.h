/* transpose.h: transpose blocks of 8 x 8 elements of any size in registers. */
#ifndef INGOT_TRANSPOSE_H
#define INGOT_TRANSPOSE_H

#include "kernel.h"

/* Eight lanes of x and y, numbered from x to y. lane_numbers: a vector of integers as wide as x's elements. */
#if defined(__clang__)
#define PICK(lane_numbers, x, y, ...) __builtin_shufflevector(x, y, __VA_ARGS__)
#else
#define PICK(lane_numbers, x, y, ...) __builtin_shuffle(x, y, (lane_numbers){__VA_ARGS__})
#endif

/* Exchange lane j of r[i] and lane i of r[j], where r is eight vectors of eight lanes: pairs, quadruples, halves. */
#define TRANSPOSE8(vector, lane_numbers, r)                                                                            \
  do {                                                                                                                 \
    vector s_[8];                                                                                                      \
    INGOT_UNROLL for (int i_ = 0; i_ < 8; i_ += 2) {                                                                   \
      s_[i_] = PICK(lane_numbers, r[i_], r[i_ + 1], 0, 8, 1, 9, 4, 12, 5, 13);                                         \
      s_[i_ + 1] = PICK(lane_numbers, r[i_], r[i_ + 1], 2, 10, 3, 11, 6, 14, 7, 15);                                   \
    }                                                                                                                  \
    INGOT_UNROLL for (int i_ = 0; i_ < 8; i_++) {                                                                      \
      const int low_ = i_ / 4 * 4 + i_ % 4 / 2; /* s_[low_], s_[low_ + 2] hold the operands of r[i_] */                \
      r[i_] = i_ % 2 == 0 ? PICK(lane_numbers, s_[low_], s_[low_ + 2], 0, 1, 8, 9, 4, 5, 12, 13)                       \
                          : PICK(lane_numbers, s_[low_], s_[low_ + 2], 2, 3, 10, 11, 6, 7, 14, 15);                    \
    }                                                                                                                  \
    INGOT_UNROLL for (int i_ = 0; i_ < 4; i_++) {                                                                      \
      s_[i_] = PICK(lane_numbers, r[i_], r[i_ + 4], 0, 1, 2, 3, 8, 9, 10, 11);                                         \
      s_[i_ + 4] = PICK(lane_numbers, r[i_], r[i_ + 4], 4, 5, 6, 7, 12, 13, 14, 15);                                   \
    }                                                                                                                  \
    INGOT_UNROLL for (int i_ = 0; i_ < 8; i_++) r[i_] = s_[i_];                                                        \
  } while (0)

#endif
