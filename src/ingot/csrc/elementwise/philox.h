/* philox.h: counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3",
 * 2011). */
#ifndef INGOT_PHILOX_H
#define INGOT_PHILOX_H

#include <stdint.h>

/* Replace `count` counters of four words each by their random numbers; word w of counter i is at w * count + i. count
 * is a constant at every call. */
static inline __attribute__((always_inline)) void philox(uint64_t seed, const int count, uint32_t *words) {
  uint32_t low = (uint32_t)seed, high = (uint32_t)(seed >> 32);
  for (int round = 0; round < 10; round++) {
    for (int i = 0; i < count; i++) {
      const uint64_t a = (uint64_t)words[i] * 0xD2511F53u, b = (uint64_t)words[2 * count + i] * 0xCD9E8D57u;
      words[i] = (uint32_t)(b >> 32) ^ words[count + i] ^ low;
      words[count + i] = (uint32_t)b;
      words[2 * count + i] = (uint32_t)(a >> 32) ^ words[3 * count + i] ^ high;
      words[3 * count + i] = (uint32_t)a;
    }
    low += 0x9E3779B9u;
    high += 0xBB67AE85u;
  }
}

#endif
