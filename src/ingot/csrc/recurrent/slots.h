/* slots.h: the slot of each row's sequence in a state that several sequences share. */
#ifndef INGOT_SLOTS_H
#define INGOT_SLOTS_H

#include "attention/paged.h"

/* The tables of a struct of arguments, for slot_of. */
#define SLOT_ROWS(g)                                                                                                   \
  {(g)->positions, (g)->owners, (g)->slots, (g)->sequences, 1, (g)->total_slots, (g)->fault, (g)->step}

/* The slot of row r, or -1 after a fault. */
static inline int64_t slot_of(const paged_rows *t, int64_t r) {
  if (!paged_within(t, t->owners[r], t->sequences) || !paged_within(t, t->positions[r], INT32_MAX)) return -1;
  return paged_block(t, t->owners[r], 0);
}

/* Return whether row r is the first of its sequence. */
static inline int slot_begins(const paged_rows *t, int64_t r) { return t->positions[r] == 0; }

#endif
