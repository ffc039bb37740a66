"""On CPUs without a fused multiply-add, its replacement rounds once, as libm's fmaf does."""

import subprocess
from importlib.resources import files
from pathlib import Path

import pytest

CSRC = str(files("ingot") / "csrc")

# Operands that make double rounding wrong: sums that nearly cancel, results near a tie, denormal ones, few bits.
PROGRAM = r"""
#include <stddef.h>
#include <stdio.h>
#include "simd/scalar.h"

static uint64_t state = 88172645463325252u;

static uint32_t next(void) {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return (uint32_t)(state >> 16);
}

static float drawn(void) {
  uint32_t bits = next();
  switch (next() % 5) {
    case 0: bits &= 0x80ffffff; break;
    case 1: bits = (bits & 0x80ffffff) | 0x3f000000; break;
    case 2: bits = (bits & 0x83ff8000) | 0x3c000000; break;
    case 3: bits = (bits & 0x807fffff) | (next() % 40 + 30) << 23; break;
    default: break;
  }
  float number;
  memcpy(&number, &bits, sizeof number);
  return number;
}

static int is_same(float x, float y) { return memcmp(&x, &y, sizeof x) == 0 || (x != x && y != y); }

int main(void) {
  long wrong = 0, twice = 0;
  for (long n = 0; n < 100000; n++) {
    vf a, b, c;
    for (int i = 0; i < 16; i++) {
      a.lane[i] = drawn(), b.lane[i] = drawn(), c.lane[i] = drawn();
      const double product = (double)a.lane[i] * b.lane[i];
      if (next() % 3 == 0) c.lane[i] = (float)(-product * (1 + ((double)(next() % 64) - 32) * 0x1p-24));
      if (next() % 5 == 0) c.lane[i] = (float)product * (float)(1u << next() % 30);
    }
    const vf got = v_fma(a, b, c);
    for (int i = 0; i < 16; i++) {
      const float once = fmaf(a.lane[i], b.lane[i], c.lane[i]);
      wrong += !is_same(got.lane[i], once) || !is_same(fma_by_double(a.lane[i], b.lane[i], c.lane[i]), once);
      twice += !is_same((float)((double)a.lane[i] * b.lane[i] + c.lane[i]), once);
    }
  }
  printf("%ld %d\n", wrong, twice > 100);
}
"""


@pytest.mark.parametrize("flags", ["-O2", "-O2 -mfma"])
def test_it_rounds_once(tmp_path: Path, flags: str) -> None:
    (tmp_path / "fma.c").write_text(PROGRAM)
    words = ["gcc", *flags.split(), "-ffp-contract=off", "-Wall", "-Werror", f"-I{CSRC}", "fma.c", "-lm", "-o", "fma"]
    subprocess.run(words, cwd=tmp_path, check=True)
    assert subprocess.run([tmp_path / "fma"], capture_output=True, text=True, check=True).stdout == "0 1\n"
