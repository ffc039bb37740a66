/* pool.h: one thread pool for the process. A region is one function that several threads run at once. */
#ifndef INGOT_POOL_H
#define INGOT_POOL_H

#include <stdint.h>

/* One thread of a region. */
typedef struct {
  int32_t thread;
  int32_t threads;
  uint64_t clock; /* the clock at the region's start plus the barriers passed */
} pool_member;

typedef void (*pool_body)(void *state, pool_member *member);

/* Run body once for each thread 0..n-1 of a region; return when all are done. The caller is thread 0. n is `threads`,
 * but at most the CPUs that the caller may use, 1 while another region uses the pool, and less when the system gives
 * fewer threads. Every thread must pass the same barriers. */
void pool_run(pool_body body, void *state, int32_t threads);

/* Return when every thread of the region has called it; all their earlier writes are then visible. */
void pool_barrier(pool_member *member);

#endif
