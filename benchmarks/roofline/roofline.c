/* roofline.c: what this machine can do: fused multiply-adds, streaming reads, barriers, empty runs.
 * `roofline THREADS` prints lines `name value`; every value is the best of several short rounds, so that a neighbour
 * on the same machine spoils it least. */
#include <immintrin.h>
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "abi.h"

#define CHAINS 12 /* independent accumulators: enough to fill two units of latency four, few enough for 16 registers */
#define FMA_STEPS 2000000
#define ROUNDS 7
#define DRAM_BYTES (256ll << 20) /* for all threads together, well beyond the last cache */
#define L2_BYTES (256ll << 10)   /* for each thread, well inside its L2 */

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* What one thread does: `amount` units of work; the result keeps the compiler from leaving it out. */
typedef float (*job)(const float *x, int64_t amount);

__attribute__((target("avx512f"))) static float fma_avx512(const float *x, int64_t steps) {
  __m512 a[CHAINS], b = _mm512_set1_ps(x[0]), c = _mm512_set1_ps(x[1]);
  for (int i = 0; i < CHAINS; i++) a[i] = _mm512_set1_ps(x[i]);
  for (int64_t s = 0; s < steps; s++)
#pragma GCC unroll 12
    for (int i = 0; i < CHAINS; i++) a[i] = _mm512_fmadd_ps(a[i], b, c);
  for (int i = 1; i < CHAINS; i++) a[0] = _mm512_add_ps(a[0], a[i]);
  return _mm512_reduce_add_ps(a[0]);
}

__attribute__((target("avx2,fma"))) static float fma_avx2(const float *x, int64_t steps) {
  __m256 a[CHAINS], b = _mm256_set1_ps(x[0]), c = _mm256_set1_ps(x[1]);
  for (int i = 0; i < CHAINS; i++) a[i] = _mm256_set1_ps(x[i]);
  for (int64_t s = 0; s < steps; s++)
#pragma GCC unroll 12
    for (int i = 0; i < CHAINS; i++) a[i] = _mm256_fmadd_ps(a[i], b, c);
  for (int i = 1; i < CHAINS; i++) a[0] = _mm256_add_ps(a[0], a[i]);
  float lanes[8];
  _mm256_storeu_ps(lanes, a[0]);
  return lanes[0] + lanes[7];
}

static float fma_scalar(const float *x, int64_t steps) {
  float a[CHAINS];
  memcpy(a, x, sizeof a);
  for (int64_t s = 0; s < steps; s++)
    for (int i = 0; i < CHAINS; i++) a[i] = fmaf(a[i], x[0], x[1]);
  for (int i = 1; i < CHAINS; i++) a[0] += a[i];
  return a[0];
}

__attribute__((target("avx2"))) static float read_floats(const float *x, int64_t count) {
  __m256 sum[8];
  for (int i = 0; i < 8; i++) sum[i] = _mm256_setzero_ps();
  for (int64_t at = 0; at < count; at += 64)
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) sum[i] = _mm256_add_ps(sum[i], _mm256_load_ps(x + at + 8 * i));
  for (int i = 1; i < 8; i++) sum[0] = _mm256_add_ps(sum[0], sum[i]);
  float lanes[8];
  _mm256_storeu_ps(lanes, sum[0]);
  return lanes[0] + lanes[7];
}

typedef struct {
  job run;
  const float *x;
  int64_t amount;
  int64_t repeats;
  pthread_barrier_t *gate;
  double begin, end;
  volatile float result;
} task;

static void *perform(void *argument) {
  task *t = argument;
  float result = t->run(t->x, t->amount); /* bring the data and the clock to where they will be */
  for (int round = 0; round < ROUNDS; round++) {
    pthread_barrier_wait(t->gate);
    double begin = now();
    for (int64_t i = 0; i < t->repeats; i++) result += t->run(t->x, t->amount);
    double end = now();
    pthread_barrier_wait(t->gate);
    if (round == 0 || end - begin < t->end - t->begin) t->begin = begin, t->end = end;
  }
  t->result = result;
  return NULL;
}

/* Seconds that the slowest thread takes. Thread t reads at x + t * stride floats. */
static double measure(job run, const float *x, int64_t stride, int64_t amount, int64_t repeats, int threads) {
  pthread_t *handles = calloc((size_t)threads, sizeof *handles);
  task *tasks = calloc((size_t)threads, sizeof *tasks);
  pthread_barrier_t gate;
  pthread_barrier_init(&gate, NULL, (unsigned)threads);
  for (int t = 0; t < threads; t++) {
    tasks[t] = (task){.run = run, .x = x + t * stride, .amount = amount, .repeats = repeats, .gate = &gate};
    if (pthread_create(&handles[t], NULL, perform, &tasks[t]) != 0) exit(75);
  }
  double seconds = 0;
  for (int t = 0; t < threads; t++) {
    pthread_join(handles[t], NULL);
    if (tasks[t].end - tasks[t].begin > seconds) seconds = tasks[t].end - tasks[t].begin;
  }
  free(handles);
  free(tasks);
  return seconds;
}

static void print_fma(const char *isa, job run, int lanes, const float *x, int threads) {
  int64_t steps = FMA_STEPS * lanes / 16;
  double flop = 2.0 * CHAINS * lanes * (double)steps * threads;
  printf("fma_gflops.%s.%d %.1f\n", isa, threads, 1e-9 * flop / measure(run, x, 0, steps, 1, threads));
}

static void print_read(const char *level, const float *x, int64_t bytes, int64_t repeats, int threads) {
  int64_t count = bytes / 4;
  double seconds = measure(read_floats, x, count, count, repeats, threads);
  printf("read_gb_per_s.%s.%d %.1f\n", level, threads, 1e-9 * (double)(bytes * repeats * threads) / seconds);
}

static void nothing(const void *args, int32_t part, int32_t parts) { (void)args, (void)part, (void)parts; }

typedef struct {
  const float *x;
  float *out; /* [parts][32], a line or two apart */
} share_args;

/* About as long as a small layer's share: 64 KiB of a cached array. */
static void read_share(const void *args, int32_t part, int32_t parts) {
  const share_args *a = args;
  (void)parts;
  for (int i = 0; i < 4; i++) a->out[part * 32] += read_floats(a->x + part * 4096, 4096);
}

/* Seconds of one run of `steps` steps, each cut into `parts` and behind a barrier. */
static double measure_run(ingot_kernel kernel, const void *args, int64_t steps, int32_t parts, int32_t threads) {
  ingot_step *list = calloc((size_t)steps + 1, sizeof *list);
  for (int64_t i = 0; i < steps; i++) list[i] = (ingot_step){kernel, args, parts, 1};
  ingot_program program = {list, NULL, NULL, steps, 0, threads};
  double best = 1e9;
  int64_t calls = steps ? 20 : 100000;
  for (int round = 0; round < ROUNDS; round++) {
    double begin = now();
    for (int64_t i = 0; i < calls; i++) ingot_run(&program, NULL);
    double seconds = (now() - begin) / (double)calls;
    if (seconds < best) best = seconds;
  }
  free(list);
  return best;
}

static void print_runs(const float *x, int threads) {
  printf("empty_run_ns.c %.1f\n", 1e9 * measure_run(nothing, NULL, 0, 1, 1));
  if (threads == 1) return;
  printf("region_ns.%d %.0f\n", threads, 1e9 * measure_run(nothing, NULL, 1, threads, threads));
  printf("barrier_ns.%d %.0f\n", threads, 1e9 * measure_run(nothing, NULL, 10000, threads, threads) / 10000);
  share_args share = {x, calloc((size_t)threads * 64, sizeof(float))};
  double fitting = measure_run(read_share, &share, 1000, 2 * threads, threads);
  printf("too_many_threads_ratio.%d %.2f\n", 2 * threads,
         measure_run(read_share, &share, 1000, 2 * threads, 2 * threads) / fitting);
  free(share.out);
}

int main(int count, char **arguments) {
  int most = count > 1 ? atoi(arguments[1]) : 1;
  float *x = aligned_alloc(4096, DRAM_BYTES);
  if (x == NULL) return 75;
  for (int64_t i = 0; i < DRAM_BYTES / 4; i++) x[i] = 0.5f;
  print_runs(x, most);
  for (int threads = 1; threads <= most; threads += most > 1 ? most - 1 : 1) {
    print_fma("scalar", fma_scalar, 1, x, threads);
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
      print_fma("avx2", fma_avx2, 8, x, threads);
      print_read("dram", x, DRAM_BYTES / threads, 1, threads);
      print_read("l2", x, L2_BYTES, 500, threads);
    }
    if (__builtin_cpu_supports("avx512f")) print_fma("avx512", fma_avx512, 16, x, threads);
  }
  free(x);
  return 0;
}
