/* lock.h: a lock in a word of the caller's memory, 0 at first. A child of fork never inherits a held lock. */
#ifndef INGOT_LOCK_H
#define INGOT_LOCK_H

#include <stdint.h>

/* Wait until the lock is free, and acquire it. */
void lock_take(uint32_t *lock);

/* Release a lock that this thread holds. */
void lock_give(uint32_t *lock);

#endif
