/* f16.h: IEEE's half precision, as bits. */
#ifndef INGOT_F16_H
#define INGOT_F16_H

#include <stdint.h>
#include <string.h>

/* The exponent is moved by a product, which makes denormal numbers normal. NaN becomes a quiet one. */
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

/* To nearest even: a denormal one by the addition of a number whose last bit is theirs, others by a carry into the bits
 * that stay. NaN stays NaN. */
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
