/* gemm_micro_neon.c: 32 registers hold 6 rows x half a panel, or 3 rows x 1 panel. */
#include <arm_neon.h>
#include <string.h>

#include "gemm/gemm.h"

#define TILE_V float32x4_t
#define TILE_LANES 4
#define TILE_ZERO() vdupq_n_f32(0)
#define TILE_LOAD(p) vld1q_f32(p)
#define TILE_STORE(p, v) vst1q_f32(p, v)
#define TILE_LOW(p) vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_f32(vld1q_f32(p)), 16))
#define TILE_HIGH(p) vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(vld1q_f32(p)), vdupq_n_u32(0xffff0000u)))
#define TILE_HALVES(p) vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)))
#define TILE_SET1(p) vld1q_dup_f32(p)
#define TILE_ADD(x, y) vaddq_f32(x, y)
#define TILE_FMA(x, y, z) vfmaq_f32(z, x, y)
#define TILE_MIN(x, y) vbslq_f32(vcltq_f32(x, y), x, y)
#define TILE_MAX(x, y) vbslq_f32(vcgtq_f32(x, y), x, y)
#define TILE_ROUND(to, v) tile_round(to, v)
#define TILE_WIDEST 8
#define TILE_GROUP 4
#define TILE_SHAPES(X, n)                                                                                              \
  X(6, 4, n) X(5, 4, n) X(4, 4, n) X(3, 8, n) X(3, 4, n) X(2, 8, n) X(2, 4, n) X(1, 8, n) X(1, 4, n)
#include "gemm/gemm_tile_floats.inc"
