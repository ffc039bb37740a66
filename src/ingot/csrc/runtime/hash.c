/* hash.c: a hash that detects corruption of a file, at memory speed; it is not cryptographic. Eight lanes read eight
 * bytes each in turn. A lane's step is a bijection of the lane and of the word that it reads, so any change of one word
 * changes the hash. */
#include <string.h>

#include "kernel.h"

#define HASH_LANES 8
#if defined(__clang__)
#define HASH_UNROLL _Pragma("clang loop unroll(full)")
#else
#define HASH_UNROLL _Pragma("GCC unroll 8")
#endif

static inline uint64_t hash_stir(uint64_t lane, uint64_t word) {
  const uint64_t mixed = (lane ^ word) * 0x9E3779B97F4A7C15u; /* 2^64 divided by the golden ratio, odd */
  return mixed << 29 | mixed >> 35;
}

static inline uint64_t hash_word_at(const char *bytes) {
  uint64_t word;
  memcpy(&word, bytes, sizeof word);
  #if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
  return __builtin_bswap64(word);
  #else
  return word;
  #endif
}

INGOT_EXPORT uint64_t ingot_hash(const void *data, int64_t nbytes) {
  const char *bytes = (const char *)data;
  uint64_t lanes[HASH_LANES];
  HASH_UNROLL for (int i = 0; i < HASH_LANES; i++) lanes[i] = (uint64_t)i;
  int64_t done = 0;
  for (; done + 8 * HASH_LANES <= nbytes; done += 8 * HASH_LANES) {
    HASH_UNROLL for (int i = 0; i < HASH_LANES; i++) lanes[i] = hash_stir(lanes[i], hash_word_at(bytes + done + 8 * i));
  }
  char rest[8 * HASH_LANES] = {0};
  if (done < nbytes) memcpy(rest, bytes + done, (size_t)(nbytes - done));
  uint64_t hash = (uint64_t)nbytes;
  HASH_UNROLL for (int i = 0; i < HASH_LANES; i++) {
    hash = hash_stir(hash, hash_stir(lanes[i], hash_word_at(rest + 8 * i)));
  }
  return hash_stir(hash ^ hash >> 32, 0);
}
