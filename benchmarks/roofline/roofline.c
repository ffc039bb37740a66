/* roofline.c: what runs and barriers cost on this machine. `roofline THREADS` prints lines `name value`; every value is
 * the best of several short rounds, so that a neighbour on the same machine spoils it least. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "abi.h"

#define ROUNDS 7

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void nothing(const void *args, int32_t task, int32_t num_tasks) { (void)args, (void)task, (void)num_tasks; }

/* The library's kernel that reads memory, on the best instruction set of this CPU. */
static ingot_kernel reading_kernel(void) {
  int32_t count;
  const ingot_kernel_row *rows = ingot_kernels(&count);
  const char *isa = ingot_best_isa();
  for (int32_t i = 0; i < count; i++)
    if (strcmp(rows[i].name, "probe_read_f32") == 0)
      return strcmp(isa, "avx512") == 0 ? rows[i].avx512 : strcmp(isa, "avx2") == 0 ? rows[i].avx2 : rows[i].scalar;
  exit(70);
}

/* Seconds of one run of `steps` steps, each cut into `num_tasks` tasks and behind a barrier. */
static double measure_run(ingot_kernel kernel, const void *args, int64_t steps, int32_t num_tasks, int32_t threads) {
  ingot_step *list = calloc((size_t)steps + 1, sizeof *list);
  for (int64_t i = 0; i < steps; i++) {
    list[i] = (ingot_step){.kernel = kernel, .args = args, .num_tasks = num_tasks, .barrier = 1, .iterations = 1};
  }
  ingot_program program = {.steps = list, .step_count = steps, .threads = threads};
  double best = 1e9;
  int64_t calls = steps ? 20 : 100000;
  for (int round = 0; round < ROUNDS; round++) {
    double begin = now();
    for (int64_t i = 0; i < calls; i++) ingot_run(&program, NULL, NULL);
    double seconds = (now() - begin) / (double)calls;
    if (seconds < best) best = seconds;
  }
  free(list);
  return best;
}

#if defined(__x86_64__)
#define DOT_CHAINS 12
#define DOT_ROUNDS 200000

/* Dot products of bf16 on registers: DOT_ROUNDS times DOT_CHAINS instructions of 32 multiply-adds a task. */
__attribute__((target("avx512f,avx512bf16"))) static void dots(const void *args, int32_t task, int32_t num_tasks) {
  const probe_args *a = args;
  __m512 chain[DOT_CHAINS];
  const __m512bh x = (__m512bh)_mm512_loadu_si512(a->x), y = (__m512bh)_mm512_loadu_si512(a->x + 16);
  (void)num_tasks;
  for (int i = 0; i < DOT_CHAINS; i++) chain[i] = _mm512_loadu_ps(a->x + i);
  for (int64_t round = 0; round < a->count; round++) {
#pragma GCC unroll 16
    for (int i = 0; i < DOT_CHAINS; i++) chain[i] = _mm512_dpbf16_ps(chain[i], x, y);
  }
  for (int i = 1; i < DOT_CHAINS; i++) chain[0] = _mm512_add_ps(chain[0], chain[i]);
  _mm512_storeu_ps(a->out + task * INGOT_PROBE_LANES, chain[0]);
}

static void print_dots(int threads) {
  float x[64], *out = calloc((size_t)threads * INGOT_PROBE_LANES, sizeof *out);
  if (out == NULL) exit(75);
  for (int i = 0; i < 64; i++) x[i] = 0.5f;
  probe_args args = {.x = x, .out = out, .count = DOT_ROUNDS, .passes = 1};
  for (int count = 1; count <= threads; count += threads - 1 > 0 ? threads - 1 : 1) {
    double flops = 64.0 * DOT_ROUNDS * DOT_CHAINS * count;
    printf("bf16_dot_gflops.%d %.1f\n", count, 1e-9 * flops / measure_run(dots, &args, 1, count, count));
  }
  free(out);
}
#endif

static void print_runs(int threads) {
  printf("empty_run_ns.c %.1f\n", 1e9 * measure_run(nothing, NULL, 0, 1, 1));
  if (threads == 1) return;
  printf("region_ns.%d %.0f\n", threads, 1e9 * measure_run(nothing, NULL, 1, threads, threads));
  printf("barrier_ns.%d %.0f\n", threads, 1e9 * measure_run(nothing, NULL, 10000, threads, threads) / 10000);
  /* Steps about as long as a small layer's: each task reads 64 KiB of a cached array. */
  int32_t num_tasks = 2 * threads;
  int64_t count = (int64_t)num_tasks * 16384;
  float *x = aligned_alloc(4096, (size_t)count * sizeof *x);
  float *out = calloc((size_t)num_tasks * INGOT_PROBE_LANES, sizeof *out);
  if (x == NULL || out == NULL) exit(75);
  for (int64_t i = 0; i < count; i++) x[i] = 0.5f;
  probe_args args = {.x = x, .out = out, .count = count, .passes = 1};
  double fitting = measure_run(reading_kernel(), &args, 1000, num_tasks, threads);
  double crowded = measure_run(reading_kernel(), &args, 1000, num_tasks, num_tasks);
  printf("too_many_threads_ratio.%d %.2f\n", num_tasks, crowded / fitting);
  free(x);
  free(out);
}

int main(int count, char **arguments) {
  const int threads = count > 1 ? atoi(arguments[1]) : 1;
#if defined(__x86_64__)
  if (ingot_has_bf16_dots()) print_dots(threads);
#endif
  print_runs(threads);
  return 0;
}
