/* lock.h: a lock is a word of the caller's memory, 0 at first, that a child of fork never inherits held. */
#ifndef INGOT_LOCK_H
#define INGOT_LOCK_H

#include <stdint.h>

/* Waits until the lock is free, and takes it. */
void lock_take(uint32_t *lock);

/* Gives back a lock that this thread has taken. */
void lock_give(uint32_t *lock);

#endif
