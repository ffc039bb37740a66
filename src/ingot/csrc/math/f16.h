/* f16.h: IEEE half precision, as bits. */
#ifndef INGOT_F16_H
#define INGOT_F16_H

#include <stdint.h>
#include <string.h>

/* A product moves the exponent, which normalises denormal numbers. NaN becomes a quiet one. */
static inline float f16_to_float(uint16_t x) {
  uint32_t bits = (uint32_t)(x & 0x7fff) << 13;
  float value;
  memcpy(&value, &bits, sizeof value);
  value *= 0x1p112f;
  memcpy(&bits, &value, sizeof bits);
  bits |= (x & 0x7fff) > 0x7c00 ? 0x7fc00000 : (x & 0x7c00) == 0x7c00 ? 0x7f800000 : 0;
  bits |= (uint32_t)(x & 0x8000) << 16;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/* To nearest even: denormal results by adding a number whose last bit has the weight of theirs, others by a carry into
 * the remaining bits. NaN stays NaN. */
static inline uint16_t float_to_f16(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  const uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
  float size;
  memcpy(&size, &magnitude, sizeof size);
  size += 0.5f;
  uint32_t small;
  memcpy(&small, &size, sizeof small);
  small -= 0x3f000000;
  const uint32_t normal = (magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13;
  const uint32_t large = magnitude > 0x7f800000 ? 0x7e00 : 0x7c00;
  return (uint16_t)(sign | (magnitude >= 0x47800000 ? large : magnitude < 0x38800000 ? small : normal));
}

#endif
