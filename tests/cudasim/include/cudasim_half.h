// __half and __nv_bfloat16 as far as kernels use them: to store and to convert, to nearest even.
#pragma once
#include "cudasim.h"

struct alignas(2) __half { unsigned short bits; };
struct alignas(2) __nv_bfloat16 { unsigned short bits; };
struct alignas(4) __half2 { __half x, y; };
struct alignas(4) __nv_bfloat162 { __nv_bfloat16 x, y; };
typedef __half half;
typedef __nv_bfloat16 nv_bfloat16;

static inline float __half2float(__half h) { return float(cudasim_bits<_Float16>(h)); }
static inline __half __float2half_rn(float v) {
  const __half canonical_nan = {0x7fff};
  return v != v ? canonical_nan : cudasim_bits<__half>(_Float16(v));
}
static inline __half __float2half(float v) { return __float2half_rn(v); }
static inline __half __double2half(double v) {
  const __half canonical_nan = {0x7fff};
  return v != v ? canonical_nan : cudasim_bits<__half>(_Float16(v));
}
static inline __half __ushort_as_half(unsigned short bits) { return {bits}; }
static inline unsigned short __half_as_ushort(__half h) { return h.bits; }
static inline float2 __half22float2(__half2 h) { return {__half2float(h.x), __half2float(h.y)}; }
static inline __half2 __floats2half2_rn(float x, float y) {
  return {__float2half_rn(x), __float2half_rn(y)};
}

static inline float __bfloat162float(__nv_bfloat16 b) {
  return cudasim_bits<float>(uint32_t(b.bits) << 16);
}
static inline __nv_bfloat16 __float2bfloat16_rn(float v) {
  const uint32_t bits = cudasim_bits<uint32_t>(v);
  if (v != v) return {0x7fff};
  return {(unsigned short)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16)};
}
static inline __nv_bfloat16 __float2bfloat16(float v) { return __float2bfloat16_rn(v); }
static inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) { return {bits}; }
static inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 b) { return b.bits; }
static inline float2 __bfloat1622float2(__nv_bfloat162 b) {
  return {__bfloat162float(b.x), __bfloat162float(b.y)};
}
static inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
  return {__float2bfloat16_rn(x), __float2bfloat16_rn(y)};
}
