// __half and __nv_bfloat16 as far as kernels use them: to store and to convert, to nearest even.
#pragma once
#include "cudasim.h"

struct alignas(2) __half { unsigned short bits; };
struct alignas(2) __nv_bfloat16 { unsigned short bits; };

static inline float __half2float(__half h) { return float(cudasim_bits<_Float16>(h)); }
static inline __half __float2half_rn(float v) {
  const __half canonical_nan = {0x7fff};
  return v != v ? canonical_nan : cudasim_bits<__half>(_Float16(v));
}

static inline float __bfloat162float(__nv_bfloat16 b) {
  return cudasim_bits<float>(uint32_t(b.bits) << 16);
}
static inline __nv_bfloat16 __float2bfloat16_rn(float v) {
  const uint32_t bits = cudasim_bits<uint32_t>(v);
  if (v != v) return {0x7fff};
  return {(unsigned short)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16)};
}
static inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) { return {bits}; }
