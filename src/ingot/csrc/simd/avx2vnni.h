/* avx2vnni.h: AVX-VNNI has the vectors of AVX2. */
#include "simd/avx2.h"
