/* optimise.c: optimiser steps. State is read and written once, in place. */
#include "kernel.h"

/* 16 elements, or the first n. */
static inline vf optimise_load(const float *p, int64_t n) { return n < 16 ? v_load_n(p, n) : v_load(p); }

static inline void optimise_store(float *p, vf v, int64_t n) {
  if (n < 16)
    v_store_n(p, v, n);
  else
    v_store(p, v);
}

void K(adamw_f32)(const void *p, int32_t task, int32_t num_tasks) {
  const adamw_args *args = p;
  const vf mean_rate = v_set(args->mean_rate), square_decay = v_set(args->square_decay);
  const vf square_rate = v_set(args->square_rate);
  const vf kept = v_set(*args->kept), size = v_set(*args->size), root = v_set(*args->root), eps = v_set(args->eps);
  const int64_t end = task_begin_grain(args->count, 16, task + 1, num_tasks);
  for (int64_t i = task_begin_grain(args->count, 16, task, num_tasks); i < end; i += 16) {
    const int64_t n = end - i;
    const vf gradient = optimise_load(args->gradient + i, n);
    vf mean = optimise_load(args->mean + i, n), square = optimise_load(args->square + i, n);
    mean = v_fma(v_sub(gradient, mean), mean_rate, mean);
    square = v_fma(square, square_decay, v_mul(v_mul(gradient, gradient), square_rate));
    const vf change = v_div(v_mul(mean, size), v_fma(v_sqrt(square), root, eps));
    const vf parameter = v_sub(v_mul(optimise_load(args->parameter + i, n), kept), change);
    optimise_store(args->mean + i, mean, n);
    optimise_store(args->square + i, square, n);
    optimise_store(args->parameter + i, parameter, n);
  }
}

void K(sgd_f32)(const void *p, int32_t task, int32_t num_tasks) {
  const sgd_args *args = p;
  const vf momentum = v_set(args->momentum), decay = v_set(args->decay), rate = v_set(*args->rate);
  const int64_t end = task_begin_grain(args->count, 16, task + 1, num_tasks);
  for (int64_t i = task_begin_grain(args->count, 16, task, num_tasks); i < end; i += 16) {
    const int64_t n = end - i;
    const vf before = optimise_load(args->parameter + i, n);
    const vf gradient = v_fma(before, decay, optimise_load(args->gradient + i, n));
    const vf velocity = v_fma(optimise_load(args->velocity + i, n), momentum, gradient);
    optimise_store(args->velocity + i, velocity, n);
    optimise_store(args->parameter + i, v_sub(before, v_mul(velocity, rate)), n);
  }
}
