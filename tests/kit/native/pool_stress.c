/* pool_stress.c: programs whose every number depends on all threads and barriers, run in all the ways that go wrong.
 * `pool_stress SCENARIO...` runs the named scenarios, or all; it prints a line for each and fails on the first that
 * is wrong. A hang is ended by the alarm. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xmmintrin.h>

#include "abi.h"

#define STEPS 12
#define MAX_PARTS 16

#define REQUIRE(condition)                                                      \
  do {                                                                          \
    if (!(condition)) {                                                         \
      fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
      _exit(1);                                                                 \
    }                                                                           \
  } while (0)

/* The library asks this one: regions have up to eight threads here, however few CPUs there are. */
__attribute__((visibility("default"))) int sched_getaffinity(pid_t pid, size_t bytes, cpu_set_t *set) {
  (void)pid;
  memset(set, 0, bytes);
  for (int cpu = 0; cpu < 8; cpu++) CPU_SET(cpu, set);
  return 0;
}

/* And this one: it can refuse, as a system short of memory or of process numbers does. */
static _Atomic int threads_allowed = 1000;

__attribute__((visibility("default"))) int pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                                                          void *(*start)(void *), void *argument) {
  static int (*create)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
  if (create == NULL) *(void **)&create = dlsym(RTLD_NEXT, "pthread_create");
  return threads_allowed-- > 0 ? create(thread, attributes, start, argument) : EAGAIN;
}

/* And this one: no thread loses its CPU, however crowded the machine is, or regions would have fewer threads than are
 * to be tried; or each loses it all the time. */
static _Atomic int is_losing;
static _Atomic long losses;

__attribute__((visibility("default"))) int getrusage(__rusage_who_t who, struct rusage *usage) {
  (void)who;
  *usage = (struct rusage){.ru_nivcsw = is_losing ? ++losses : losses};
  return 0;
}

typedef struct {
  const int64_t *x;
  int64_t *out;
  int32_t count;
} mix_args;

/* out[part] = 31 * sum(x) + part, in 64 bits that wrap. */
static void mix(const void *args, int32_t part, int32_t parts) {
  const mix_args *a = args;
  REQUIRE(part >= 0 && part < parts);
  uint64_t sum = 0;
  for (int32_t i = 0; i < a->count; i++) sum += (uint64_t)a->x[i];
  a->out[part] = (int64_t)(sum * 31 + (uint64_t)part);
}

/* A chain of mix steps over rows of `values`; the first row is the caller's, bound late. */
typedef struct {
  int64_t first[MAX_PARTS];
  int64_t values[STEPS][MAX_PARTS];
  mix_args args[STEPS];
  ingot_step steps[STEPS];
  ingot_patch patch;
  ingot_program program;
} chain;

static chain *chain_make(int32_t threads, int32_t parts, int32_t seed) {
  chain *c = calloc(1, sizeof *c);
  REQUIRE(c != NULL);
  for (int32_t i = 0; i < MAX_PARTS; i++) c->first[i] = seed * 1000 + i;
  int32_t count = MAX_PARTS;
  for (int32_t s = 0; s < STEPS; s++) {
    int32_t pieces = (s + seed) % 4 == 0 ? 1 : parts;
    c->args[s] = (mix_args){s == 0 ? NULL : c->values[s - 1], c->values[s], count};
    c->steps[s] = (ingot_step){mix, &c->args[s], pieces, s > 0, 1};
    count = pieces;
  }
  c->patch = (ingot_patch){(void **)&c->args[0].x, 0, 0};
  c->program = (ingot_program){
    .steps = c->steps, .patches = &c->patch, .step_count = STEPS, .patch_count = 1, .threads = threads};
  return c;
}

static void chain_run(chain *c) {
  memset(c->values, 0xff, sizeof c->values);
  void *bindings[1] = {c->first};
  REQUIRE(ingot_run(&c->program, bindings, NULL) == 0);
}

static void chain_check(const chain *c) {
  const int64_t *x = c->first;
  int32_t count = MAX_PARTS;
  for (int32_t s = 0; s < STEPS; s++) {
    uint64_t sum = 0;
    for (int32_t i = 0; i < count; i++) sum += (uint64_t)x[i];
    count = c->steps[s].parts;
    for (int32_t i = 0; i < count; i++) REQUIRE(c->values[s][i] == (int64_t)(sum * 31 + (uint64_t)i));
    x = c->values[s];
  }
}

static void run_many(int32_t rounds, int32_t seed) {
  chain *chains[8];
  for (int32_t t = 0; t < 8; t++) chains[t] = chain_make(t + 1, 1 + (seed + 5 * t) % MAX_PARTS, seed + t);
  for (int32_t i = 0; i < rounds; i++) {
    chain *c = chains[(i * 5 + seed) % 8];
    chain_run(c);
    chain_check(c);
  }
  for (int32_t t = 0; t < 8; t++) free(chains[t]);
}

static int32_t rounds = 400;

static void regions(void) {
  run_many(rounds, 1);
  int32_t threads = 0;
  DIR *folder = opendir("/proc/self/task");
  REQUIRE(folder != NULL);
  for (struct dirent *entry; (entry = readdir(folder)) != NULL;) threads += entry->d_name[0] != '.';
  closedir(folder);
  REQUIRE(threads >= 8);
}

static void *caller(void *seed) {
  run_many(rounds, (int32_t)(intptr_t)seed);
  return NULL;
}

static void concurrent(void) {
  pthread_t threads[4];
  for (intptr_t i = 0; i < 4; i++) REQUIRE(pthread_create(&threads[i], NULL, caller, (void *)(i + 2)) == 0);
  run_many(rounds, 7);
  for (int32_t i = 0; i < 4; i++) REQUIRE(pthread_join(threads[i], NULL) == 0);
}

static void require_child(pid_t child) {
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* Children are born while other threads are inside regions, while workers sleep, and from children. */
static void forks(void) {
  pthread_t threads[2];
  for (intptr_t i = 0; i < 2; i++) REQUIRE(pthread_create(&threads[i], NULL, caller, (void *)(i + 20)) == 0);
  for (int32_t i = 0; i < 8; i++) {
    run_many(8, 30 + i);
    if (i % 4 == 3) usleep(2000);
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      alarm(60);
      run_many(16, 40 + i);
      pid_t grandchild = fork();
      if (grandchild == 0) {
        alarm(60);
        run_many(16, 50 + i);
        _exit(0);
      }
      require_child(grandchild);
      run_many(16, 60 + i);
      _exit(0);
    }
    run_many(8, 70 + i);
    require_child(child);
  }
  for (int32_t i = 0; i < 2; i++) REQUIRE(pthread_join(threads[i], NULL) == 0);
}

static void profiled(void) {
  chain *c = chain_make(3, 5, 9);
  void *bindings[1] = {c->first};
  for (int32_t i = 0; i < rounds; i++) {
    int64_t nanoseconds[STEPS];
    memset(nanoseconds, 0xff, sizeof nanoseconds);
    REQUIRE(ingot_run_profiled(&c->program, bindings, NULL, nanoseconds) == 0);
    for (int32_t s = 0; s < STEPS; s++) REQUIRE(nanoseconds[s] >= 0);
    chain_check(c);
  }
  free(c);
}

typedef struct {
  int64_t values[65][MAX_PARTS];
  int64_t x[MAX_PARTS];
} ripple_args;

/* values[turn][part] = 31 * the sum of the turn before + part. */
static void ripple(const void *args, int32_t part, int32_t parts) {
  ripple_args *a = (void *)args;
  const int32_t turn = part / parts;
  const mix_args row = {turn ? a->values[turn - 1] : a->x, a->values[turn], turn ? parts : MAX_PARTS};
  mix(&row, part % parts, parts);
}

/* One step of many turns, in which each part needs what all others made in the turn before. */
static void turns(void) {
  ripple_args *args = calloc(1, sizeof *args);
  REQUIRE(args != NULL);
  for (int32_t i = 0; i < MAX_PARTS; i++) args->x[i] = 77 * i;
  for (int32_t i = 0; i < rounds; i++) {
    const int32_t parts = 1 + i % MAX_PARTS, count = 1 + i % 64;
    memset(args->values, 0xff, sizeof args->values);
    ingot_step step = {ripple, args, parts, 0, count};
    ingot_program program = {.steps = &step, .step_count = 1, .threads = 1 + i % 5};
    int64_t nanoseconds;
    REQUIRE((i % 3 ? ingot_run(&program, NULL, NULL) : ingot_run_profiled(&program, NULL, NULL, &nanoseconds)) == 0);
    for (int32_t turn = 0; turn < count; turn++) {
      uint64_t sum = 0;
      for (int32_t k = 0; k < (turn ? parts : MAX_PARTS); k++)
        sum += (uint64_t)(turn ? args->values[turn - 1][k] : args->x[k]);
      for (int32_t k = 0; k < parts; k++) REQUIRE(args->values[turn][k] == (int64_t)(sum * 31 + (uint64_t)k));
    }
    for (int32_t k = 0; k < MAX_PARTS; k++) REQUIRE(args->values[count][k] == -1);
  }
  free(args);
}

/* In a child, which has no workers yet: no thread can be had, then two. */
static void refusals(void) {
  pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    alarm(60);
    threads_allowed = 0;
    run_many(16, 3);
    threads_allowed = 2;
    run_many(16, 4);
    _exit(0);
  }
  require_child(child);
}

static int loses_one; /* in the run to come */

/* Says who computes it; all others wait for the first part. */
static void drowse(const void *args, int32_t part, int32_t parts) {
  REQUIRE(part < parts);
  ((pthread_t *)args)[part] = pthread_self();
  if (part != 0) return;
  losses += loses_one;
  loses_one = 0;
  usleep(2000);
}

static int32_t members(void) {
  pthread_t who[4];
  ingot_step steps[2] = {{drowse, who, 4, 0, 1}, {drowse, who, 4, 1, 1}};
  ingot_program program = {.steps = steps, .step_count = 2, .threads = 4};
  REQUIRE(ingot_run(&program, NULL, NULL) == 0);
  int32_t found = 0;
  for (int32_t i = 0; i < 4; i++) {
    int32_t k = 0;
    while (k < i && !pthread_equal(who[k], who[i])) k++;
    found += k == i;
  }
  return found;
}

/* While threads lose their CPUs and others wait for them, regions get fewer; afterwards, all again. A CPU that is lost
 * now and then changes nothing, nor do those that are lost between regions. */
static void crowded(void) {
  int32_t runs = 0;
  for (int32_t i = 0; i < 90; i++) {
    losses += 10;
    loses_one = i % 9 == 0;
    REQUIRE(members() == 4);
  }
  is_losing = 1;
  while (members() == 4) REQUIRE(++runs < 1000);
  run_many(16, 5);
  is_losing = 0;
  while (members() < 4) REQUIRE(++runs < 5000);
}

/* Quotients that are rounded, and quotients so small that a flush to zero would show. */
static void divide(const void *args, int32_t part, int32_t parts) {
  float *x = *(float *const *)args;
  for (int32_t i = part; i < 64; i += parts) x[i] = i % 2 ? 1e-38f / (float)(i + 3) : 1.0f / (float)(i + 3);
}

static void host_modes(void) {
  static const unsigned modes[] = {0x1f80, 0x9fc0, 0x3f80, 0x5f80, 0xffc0};
  float expected[64], x[64], *pointer = expected;
  divide(&pointer, 0, 1);
  pointer = x;
  ingot_step step = {divide, &pointer, 4, 0, 1};
  for (int32_t threads = 1; threads <= 4; threads++)
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
      ingot_program program = {.steps = &step, .step_count = 1, .threads = threads};
      unsigned before = _mm_getcsr();
      _mm_setcsr(modes[i]);
      ingot_run(&program, NULL, NULL);
      unsigned after = _mm_getcsr();
      _mm_setcsr(before);
      REQUIRE((after & ~0x3fu) == (modes[i] & ~0x3fu));
      REQUIRE(memcmp(x, expected, sizeof x) == 0);
    }
}

/* Exit with workers asleep, and with workers still looking for work. */
static void exits(void) {
  for (int32_t i = 0; i < 4; i++) {
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      alarm(60);
      run_many(4, i);
      if (i % 2) usleep(20000);
      exit(0);
    }
    require_child(child);
  }
}

static const struct {
  const char *name;
  void (*run)(void);
} scenarios[] = {
    {"regions", regions}, {"concurrent", concurrent}, {"crowded", crowded}, {"profiled", profiled}, {"turns", turns},
    {"host_modes", host_modes}, {"refusals", refusals}, {"forks", forks}, {"exits", exits},
};

int main(int count, char **names) {
  alarm(300);
  if (getenv("POOL_STRESS_ROUNDS")) rounds = atoi(getenv("POOL_STRESS_ROUNDS"));
  for (size_t i = 0; i < sizeof scenarios / sizeof scenarios[0]; i++) {
    int wanted = count == 1;
    for (int n = 1; n < count; n++) wanted |= strcmp(names[n], scenarios[i].name) == 0;
    if (!wanted) continue;
    scenarios[i].run();
    printf("%s: ok\n", scenarios[i].name);
    fflush(stdout);
  }
  return 0;
}
