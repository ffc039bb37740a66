/* pool.h: one process-wide pool of threads; a region is one function run by several of them at once. */
#ifndef INGOT_POOL_H
#define INGOT_POOL_H

#include <stdint.h>

/* One thread's place in a region. */
typedef struct {
  int32_t thread;
  int32_t threads;
  uint64_t clock; /* the region's beginning plus the barriers passed */
} pool_member;

typedef void (*pool_body)(void *state, pool_member *member);

/* Runs body once for each thread 0..n-1 of a region and returns when all are done; the caller is thread 0.
 * n is `threads`, but no more than the CPUs that the caller may use, 1 when another region has the pool, and fewer
 * when the system gives no more threads.
 * Every member must pass the same barriers. */
void pool_run(pool_body body, void *state, int32_t threads);

/* Returns when every member of the region has called it; what they wrote before is then visible. */
void pool_barrier(pool_member *member);

#endif
