/* probe.c: measure the machine's peak arithmetic and read bandwidth, to relate a kernel's speed to. */
#include "kernel.h"

/* Independent chains of 16 lanes: enough to hide the latency of the FMA units, few enough to fit the register file. */
#if defined(ISA_avx512)
#define PROBE_CHAINS 12
#else
#define PROBE_CHAINS 6
#endif

#define PROBE_STREAMS 4

#if defined(__clang__)
#define PROBE_UNROLL _Pragma("clang loop unroll(full)")
#else
#define PROBE_UNROLL _Pragma("GCC unroll 16")
#endif

/* Each task: a->count fused multiply-adds on registers, in whole rounds of chains. The chains begin with loaded lanes,
 * because a compiler that knows two halves to be equal computes only one. */
void K(probe_fma_f32)(const void *args, int32_t task, int32_t num_tasks) {
  const probe_args *a = args;
  const vf scale = v_set(a->x[0]), shift = v_set(a->x[1]);
  vf chain[PROBE_CHAINS];
  (void)num_tasks;
  PROBE_UNROLL for (int i = 0; i < PROBE_CHAINS; i++) chain[i] = v_load(a->x + i);
  for (int64_t done = 0; done < a->count; done += PROBE_CHAINS * 16) {
    PROBE_UNROLL for (int i = 0; i < PROBE_CHAINS; i++) chain[i] = v_fma(chain[i], scale, shift);
  }
  PROBE_UNROLL for (int i = 1; i < PROBE_CHAINS; i++) chain[0] = v_add(chain[0], chain[i]);
  v_store(a->out + task * INGOT_PROBE_LANES, chain[0]);
}

/* All tasks together read a->count floats in each pass. Each task reads PROBE_STREAMS streams at once, which load slow
 * memory faster than one stream; the sums keep the compiler from removing the loads. */
void K(probe_read_f32)(const void *args, int32_t task, int32_t num_tasks) {
  const probe_args *a = args;
  const int64_t begin = task_begin_grain(a->count, INGOT_PROBE_GRAIN, task, num_tasks);
  const int64_t length = (task_begin_grain(a->count, INGOT_PROBE_GRAIN, task + 1, num_tasks) - begin) / PROBE_STREAMS;
  vf sum[2 * PROBE_STREAMS];
  PROBE_UNROLL for (int i = 0; i < 2 * PROBE_STREAMS; i++) sum[i] = v_set(0.0f);
  for (int64_t pass = 0; pass < a->passes; pass++) {
    for (const float *x = a->x + begin; x < a->x + begin + length; x += 32) {
      PROBE_UNROLL for (int i = 0; i < PROBE_STREAMS; i++) {
        sum[2 * i] = v_add(sum[2 * i], v_load(x + i * length));
        sum[2 * i + 1] = v_add(sum[2 * i + 1], v_load(x + i * length + 16));
      }
    }
  }
  PROBE_UNROLL for (int i = 1; i < 2 * PROBE_STREAMS; i++) sum[0] = v_add(sum[0], sum[i]);
  v_store(a->out + task * INGOT_PROBE_LANES, sum[0]);
}

#undef PROBE_STREAMS
#undef PROBE_CHAINS
#undef PROBE_UNROLL
