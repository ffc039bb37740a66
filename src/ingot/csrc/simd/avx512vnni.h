/* avx512vnni.h: AVX512_VNNI has the vectors of AVX-512. */
#include "simd/avx512.h"
