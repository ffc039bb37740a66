/* lock.c: a lock for memory that several programs share, over futexes.
 *
 * The lock word is 0 while the lock is free. The word of a held lock identifies the process, by its number of forks,
 * and whether a thread sleeps on it. A lock that a thread of the parent held at the fork counts as free in the child,
 * which has no such thread. The states are those of Drepper, "Futexes Are Tricky", 2011. */
#define _GNU_SOURCE
#include "runtime/lock.h"

#include <linux/futex.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

#define HELD 1u
#define AWAITED 2u
#define ONE_FORK 4u

static uint32_t held = HELD; /* the word of a lock that this process holds and no thread waits for */

static void count_fork(void) { held += ONE_FORK; }

__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(NULL, NULL, count_fork); }

static inline int32_t replace(uint32_t *lock, uint32_t *seen, uint32_t next) {
  return __atomic_compare_exchange_n(lock, seen, next, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

/* A thread that had to wait acquires the lock as awaited, because it cannot know whether other threads still sleep. */
static void wait_and_take(uint32_t *lock, uint32_t seen) {
  for (;;) {
    if ((seen & ~AWAITED) != held) {
      if (replace(lock, &seen, held | AWAITED)) return;
    } else if (seen & AWAITED || replace(lock, &seen, held | AWAITED)) {
      syscall(SYS_futex, lock, FUTEX_WAIT_PRIVATE, held | AWAITED, NULL, NULL, 0);
      seen = __atomic_load_n(lock, __ATOMIC_RELAXED);
    }
  }
}

void lock_take(uint32_t *lock) {
  uint32_t seen = 0;
  if (!replace(lock, &seen, held)) wait_and_take(lock, seen);
}

void lock_give(uint32_t *lock) {
  if (__atomic_exchange_n(lock, 0, __ATOMIC_RELEASE) & AWAITED)
    syscall(SYS_futex, lock, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}
