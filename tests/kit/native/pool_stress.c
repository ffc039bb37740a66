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
  int32_t chunks;
} mix_args;

#define UNTOUCHED (-1) /* a number of out before it is made */

/* out[i] = 31 * sum(x) + i, in 64 bits that wrap; i counts the chunks of each task. */
static void mix(const void *args, int32_t task, int32_t num_tasks) {
  const mix_args *a = args;
  REQUIRE(task >= 0 && task < num_tasks * a->chunks);
  const int32_t i = task % num_tasks * a->chunks + task / num_tasks;
  uint64_t sum = 0;
  for (int32_t k = 0; k < a->count; k++) sum += (uint64_t)a->x[k];
  a->out[i] = (int64_t)(sum * 31 + (uint64_t)i);
}

/* A chain of mix steps over rows of `values`; the first row is the caller's, bound late. Most steps read what the one
 * before them made; a few read what that one reads, and wait for nobody. */
typedef struct {
  int64_t first[MAX_PARTS];
  int64_t values[STEPS][MAX_PARTS];
  mix_args args[STEPS];
  ingot_step steps[STEPS];
  ingot_patch patch;
  ingot_program program;
  int32_t stop;
} chain;

static int32_t items(const chain *c, int32_t s) { return c->steps[s].num_tasks * c->args[s].chunks; }

static chain *chain_make(int32_t threads, int32_t num_tasks, int32_t seed) {
  chain *c = calloc(1, sizeof *c);
  REQUIRE(c != NULL);
  for (int32_t i = 0; i < MAX_PARTS; i++) c->first[i] = seed * 1000 + i;
  for (int32_t s = 0; s < STEPS; s++) {
    const int32_t pieces = (s + seed) % 4 == 0 ? 1 : num_tasks, most = MAX_PARTS / pieces;
    const int32_t chunks = 1 + (s + seed) % 3 < most ? 1 + (s + seed) % 3 : most;
    const int32_t is_beside = s % 4 == 2;
    mix_args *a = &c->args[s];
    *a = (mix_args){.out = c->values[s], .count = MAX_PARTS, .chunks = chunks};
    if (s > 0) {
      a->x = is_beside ? a[-1].x : a[-1].out;
      a->count = is_beside ? a[-1].count : items(c, s - 1);
    }
    c->steps[s] = (ingot_step){mix, a, pieces, s > 0 && !is_beside, 1, chunks};
  }
  c->patch = (ingot_patch){(void **)&c->args[0].x, 0, 0};
  c->program = (ingot_program){
    .steps = c->steps, .patches = &c->patch, .step_count = STEPS, .patch_count = 1, .threads = threads,
    .stop = &c->stop};
  return c;
}

static void chain_run(chain *c) {
  memset(c->values, 0xff, sizeof c->values);
  void *bindings[1] = {c->first};
  REQUIRE(ingot_run(&c->program, bindings, NULL) == 0);
}

/* How many numbers of a step are made, all of them right. */
static int32_t chain_made(const chain *c, int32_t s) {
  const mix_args *a = &c->args[s];
  uint64_t sum = 0;
  int32_t made = 0;
  for (int32_t k = 0; k < a->count; k++) sum += (uint64_t)a->x[k];
  for (int32_t i = 0; i < items(c, s); i++) {
    if (a->out[i] == UNTOUCHED) continue;
    REQUIRE(a->out[i] == (int64_t)(sum * 31 + (uint64_t)i));
    made++;
  }
  return made;
}

static void chain_check(const chain *c) {
  for (int32_t s = 0; s < STEPS; s++) REQUIRE(chain_made(c, s) == items(c, s));
}

/* Of a run that ended at a step: those before it are whole, it is not, and nothing behind the next barrier is begun. */
static void chain_check_stopped(const chain *c, int32_t ended) {
  int32_t is_behind = 0;
  REQUIRE(ended >= 0 && ended < STEPS);
  for (int32_t s = 0; s < STEPS; s++) {
    is_behind |= s > ended && c->steps[s].barrier;
    const int32_t made = chain_made(c, s);
    if (s < ended) REQUIRE(made == items(c, s));
    if (s == ended) REQUIRE(made < items(c, s));
    if (is_behind) REQUIRE(made == 0);
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

/* Each thread ends a step after it begins it, and begins the next one no earlier. */
static void timed(void) {
  chain *c = chain_make(3, 5, 9);
  void *bindings[1] = {c->first};
  for (int32_t i = 0; i < rounds; i++) {
    int64_t times[STEPS][3][2];
    memset(times, 0, sizeof times);
    REQUIRE(ingot_run_timed(&c->program, bindings, NULL, times[0][0], i % 2) == 0);
    for (int32_t s = 0; s < STEPS; s++)
      for (int32_t t = 0; t < 3; t++) {
        REQUIRE(times[s][t][0] <= times[s][t][1] && (t || times[s][t][0]));
        REQUIRE(!s || times[s - 1][t][1] <= times[s][t][0]);
      }
    chain_check(c);
  }
  free(c);
}

typedef struct {
  int64_t values[65][MAX_PARTS];
  int64_t x[MAX_PARTS];
} ripple_args;

/* values[turn][task] = 31 * the sum of the turn before + task. */
static void ripple(const void *args, int32_t task, int32_t num_tasks) {
  ripple_args *a = (void *)args;
  const int32_t turn = task / num_tasks;
  const mix_args row = {turn ? a->values[turn - 1] : a->x, a->values[turn], turn ? num_tasks : MAX_PARTS, 1};
  mix(&row, task % num_tasks, num_tasks);
}

/* One step of many turns, in which each task needs what all others made in the turn before. */
static void turns(void) {
  ripple_args *args = calloc(1, sizeof *args);
  REQUIRE(args != NULL);
  for (int32_t i = 0; i < MAX_PARTS; i++) args->x[i] = 77 * i;
  for (int32_t i = 0; i < rounds; i++) {
    const int32_t num_tasks = 1 + i % MAX_PARTS, count = 1 + i % 64;
    memset(args->values, 0xff, sizeof args->values);
    ingot_step step = {ripple, args, num_tasks, 0, count, 1};
    ingot_program program = {.steps = &step, .step_count = 1, .threads = 1 + i % 5};
    int64_t times[5][2];
    REQUIRE((i % 3 ? ingot_run(&program, NULL, NULL) : ingot_run_timed(&program, NULL, NULL, times[0], 1)) == 0);
    for (int32_t turn = 0; turn < count; turn++) {
      uint64_t sum = 0;
      for (int32_t k = 0; k < (turn ? num_tasks : MAX_PARTS); k++)
        sum += (uint64_t)(turn ? args->values[turn - 1][k] : args->x[k]);
      for (int32_t k = 0; k < num_tasks; k++) REQUIRE(args->values[turn][k] == (int64_t)(sum * 31 + (uint64_t)k));
    }
    for (int32_t k = 0; k < MAX_PARTS; k++) REQUIRE(args->values[count][k] == -1);
  }
  free(args);
}

typedef struct {
  chain *c;
  _Atomic int32_t is_done;
} stopped_runs;

/* Runs until enough were made, and one of them ended on its way. */
static void *keep_running(void *runs) {
  stopped_runs *r = runs;
  chain *c = r->c;
  void *bindings[1] = {c->first};
  int32_t is_halved = 0;
  for (int32_t i = 0; i < rounds || !is_halved; i++) {
    int64_t times[STEPS][8][2];
    ingot_fault fault = {0};
    memset(c->values, 0xff, sizeof c->values);
    __atomic_store_n(&c->stop, 0, __ATOMIC_RELAXED);
    const int32_t code = i % 5 == 4 ? ingot_run_timed(&c->program, bindings, &fault, times[0][0], i % 2)
                                    : ingot_run(&c->program, bindings, &fault);
    if (code == 0) {
      chain_check(c);
      continue;
    }
    REQUIRE(code == INGOT_STOPPED && fault.code == code);
    chain_check_stopped(c, fault.step);
    is_halved |= fault.step > 0;
  }
  r->is_done = 1;
  return NULL;
}

/* Two programs, alone or with one lock, each of which this thread stops at any moment. */
static void stopped(void) {
  for (int32_t seed = 0; seed < 4; seed++) {
    uint32_t lock = 0, random = 12345 + (uint32_t)seed;
    stopped_runs runs[2] = {{chain_make(4, 5, seed), 0}, {chain_make(2 + seed, 8 - seed, seed + 1), 0}};
    pthread_t threads[2];
    for (int32_t i = 0; i < 2; i++) {
      if (seed % 2) runs[i].c->program.lock = &lock;
      REQUIRE(pthread_create(&threads[i], NULL, keep_running, &runs[i]) == 0);
    }
    while (!runs[0].is_done || !runs[1].is_done) {
      random = random * 1664525 + 1013904223;
      if (random >> 30) usleep(random >> 24 & 127);
      __atomic_store_n(&runs[random >> 16 & 1].c->stop, 1, __ATOMIC_RELAXED);
    }
    for (int32_t i = 0; i < 2; i++) REQUIRE(pthread_join(threads[i], NULL) == 0);
    for (int32_t i = 0; i < 2; i++) free(runs[i].c);
  }
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

/* Says who computes it; all others wait for the first task. */
static void drowse(const void *args, int32_t task, int32_t num_tasks) {
  REQUIRE(task < num_tasks);
  ((pthread_t *)args)[task] = pthread_self();
  if (task != 0) return;
  losses += loses_one;
  loses_one = 0;
  usleep(2000);
}

static int32_t members(void) {
  pthread_t who[4];
  ingot_step steps[2] = {{drowse, who, 4, 0, 1, 1}, {drowse, who, 4, 1, 1, 1}};
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
static void divide(const void *args, int32_t task, int32_t num_tasks) {
  float *x = *(float *const *)args;
  for (int32_t i = task; i < 64; i += num_tasks) x[i] = i % 2 ? 1e-38f / (float)(i + 3) : 1.0f / (float)(i + 3);
}

static void host_modes(void) {
  static const unsigned modes[] = {0x1f80, 0x9fc0, 0x3f80, 0x5f80, 0xffc0};
  float expected[64], x[64], *pointer = expected;
  divide(&pointer, 0, 1);
  pointer = x;
  ingot_step step = {divide, &pointer, 4, 0, 1, 1};
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
    {"regions", regions}, {"concurrent", concurrent}, {"crowded", crowded}, {"timed", timed}, {"turns", turns},
    {"stopped", stopped}, {"host_modes", host_modes}, {"refusals", refusals}, {"forks", forks}, {"exits", exits},
};

int main(int count, char **names) {
  if (getenv("POOL_STRESS_ROUNDS")) rounds = atoi(getenv("POOL_STRESS_ROUNDS"));
  alarm(300 + (unsigned)rounds / 10);
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
