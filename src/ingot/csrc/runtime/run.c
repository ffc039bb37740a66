/* run.c: run a program: set this call's pointers and sizes, then run every step with its tasks distributed over
 * threads. */
#include <stdatomic.h>
#include <time.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "kernel.h"
#include "runtime/lock.h"
#include "runtime/pool.h"

/* times, is_separate: as in ingot_run_timed. ended: the first step of which a thread left a task undone; INT64_MAX
 * while the run goes on. */
typedef struct {
  const ingot_program *program;
  int64_t *times;
  int32_t is_separate;
  _Atomic int64_t ended;
} running;

/* Whether a task of step i must be left undone: another task was, or the run has been stopped. */
static inline int is_ended(running *run, int64_t i) {
  const int32_t *stop = run->program->stop;
  int64_t ended = atomic_load_explicit(&run->ended, memory_order_relaxed);
  if (ended == INT64_MAX && (!stop || !__atomic_load_n(stop, __ATOMIC_RELAXED))) return 0;
  while (i < ended && !atomic_compare_exchange_weak_explicit(&run->ended, &ended, i, memory_order_relaxed,
                                                             memory_order_relaxed)) {
  }
  return 1;
}

/* Task p of a step belongs to thread p % threads. A step of one task belongs to thread 0, so its iterations need no
 * barrier. */
static inline void run_step(running *run, int64_t i, pool_member *member) {
  const ingot_step *step = &run->program->steps[i];
  const int32_t chunks = step->chunks > 1 ? step->chunks : 1;
  for (int32_t iteration = 0; iteration < step->iterations; iteration++) {
    if (iteration > 0 && step->num_tasks > 1) pool_barrier(member);
    for (int32_t chunk = iteration; chunk < iteration + chunks; chunk++) {
      for (int32_t task = member->thread; task < step->num_tasks && !is_ended(run, i); task += member->threads)
        step->kernel(step->args, chunk * step->num_tasks + task, step->num_tasks);
    }
  }
}

/* A thread that left a task undone goes on to the next barrier. After it all threads see that the run has ended, and
 * none goes on. A task that is left undone after a barrier never ends the run at a step before that barrier. */
static void run_steps(void *state, pool_member *member) {
  running *run = state;
  const ingot_step *steps = run->program->steps;
  for (int64_t i = 0; i < run->program->step_count; i++) {
    if (steps[i].barrier) {
      pool_barrier(member);
      if (atomic_load_explicit(&run->ended, memory_order_relaxed) < i) return;
    }
    run_step(run, i, member);
  }
}

static int64_t now_nanoseconds(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static void run_steps_timed(void *state, pool_member *member) {
  running *run = state;
  const ingot_program *program = run->program;
  if (run->is_separate) pool_barrier(member);
  int64_t begin = now_nanoseconds();
  for (int64_t i = 0; i < program->step_count; i++) {
    if (program->steps[i].barrier && !run->is_separate) {
      pool_barrier(member);
      if (atomic_load_explicit(&run->ended, memory_order_relaxed) < i) return;
      begin = now_nanoseconds();
    }
    run_step(run, i, member);
    if (run->is_separate) pool_barrier(member);
    int64_t *times = run->times + 2 * (i * program->threads + member->thread);
    times[0] = begin;
    times[1] = begin = now_nanoseconds();
  }
}

static int32_t useful_threads(const ingot_program *program) {
  if (program->threads > 1)
    for (int64_t i = 0; i < program->step_count; i++)
      if (program->steps[i].num_tasks > 1) return program->threads;
  return 1;
}

/* A host may have set flush-to-zero or another rounding mode on this thread; no bit of a result may depend on it. */
static unsigned enter_arithmetic(void) {
  #if defined(__x86_64__)
  unsigned host_mode = _mm_getcsr();
  if ((host_mode & ~_MM_EXCEPT_MASK) != _MM_MASK_MASK) _mm_setcsr(_MM_MASK_MASK);
  return host_mode;
  #else
  return 0;
  #endif
}

static void leave_arithmetic(unsigned host_mode) {
  #if defined(__x86_64__)
  if ((host_mode & ~_MM_EXCEPT_MASK) != _MM_MASK_MASK) _mm_setcsr(host_mode);
  #else
  (void)host_mode;
  #endif
}

static void run_alone(const ingot_program *program, void *const *bindings, pool_body body, void *state) {
  const int64_t *sizes = program->resize_count ? bindings[program->sizes_slot] : NULL;
  for (int64_t i = 0; i < program->resize_count; i++) {
    const ingot_resize *resize = &program->resizes[i];
    *resize->where = resize->base + resize->factor * sizes[resize->size];
  }
  for (int64_t i = 0; i < program->patch_count; i++) {
    const ingot_patch *patch = &program->patches[i];
    *patch->where = (char *)bindings[patch->slot] + patch->byte_offset;
  }
  if (program->fault) *program->fault = (ingot_fault){0};

  unsigned host_mode = enter_arithmetic();
  int32_t threads = useful_threads(program);
  if (threads == 1) {
    pool_member alone = {.thread = 0, .threads = 1};
    body(state, &alone);
  } else {
    pool_run(body, state, threads);
  }
  leave_arithmetic(host_mode);
}

static int32_t run(void *const *bindings, ingot_fault *fault, pool_body body, running *state) {
  const ingot_program *program = state->program;
  if (program->lock) lock_take(program->lock);
  run_alone(program, bindings, body, state);
  ingot_fault found = program->fault ? *program->fault : (ingot_fault){0};
  if (state->ended < program->step_count) found = (ingot_fault){.code = INGOT_STOPPED, .step = (int32_t)state->ended};
  if (found.code && fault) *fault = found;
  if (program->lock) lock_give(program->lock);
  return found.code;
}

INGOT_EXPORT int32_t ingot_run(const ingot_program *program, void *const *bindings, ingot_fault *fault) {
  running state = {.program = program, .ended = INT64_MAX};
  return run(bindings, fault, run_steps, &state);
}

INGOT_EXPORT int32_t ingot_run_timed(const ingot_program *program, void *const *bindings, ingot_fault *fault,
                                     int64_t *times, int32_t is_separate) {
  running state = {.program = program, .times = times, .is_separate = is_separate, .ended = INT64_MAX};
  return run(bindings, fault, run_steps_timed, &state);
}

INGOT_EXPORT int32_t ingot_sample(ingot_sampler *sampler, const float *logits) {
  unsigned host_mode = enter_arithmetic();
  sampler->logits = logits;
  sampler->kernel(sampler, 0, 1);
  leave_arithmetic(host_mode);
  return sampler->token;
}

INGOT_EXPORT int32_t ingot_run_sampled(const ingot_program *program, void *const *bindings, ingot_fault *fault,
                                       int64_t slot, ingot_sampler *const *samplers, int64_t count) {
  int32_t code = ingot_run(program, bindings, fault);
  for (int64_t i = 0; i < count && code == 0; i++)
    ingot_sample(samplers[i], (const float *)bindings[slot] + i * samplers[i]->vocab);
  return code;
}
