// CUDA C++ as g++ reads it: decorations, built-in variables, vectors, arithmetic, warp operations.
//
// Compiled in front of a kernel's source, which spells shared memory as SMEM. What this file does not
// have does not compile: nothing is silently different.
// Products and sums are single operations of the C++ type, and no two are ever contracted.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cudasim_runtime.h"

#define CUDASIM
#define __global__
#define __device__
#define __restrict__ __restrict
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)

// `type name dimensions` in shared memory.
#define SMEM(type, name, ...)                                       \
  static ::sim::SharedSite name##_site;                             \
  type(&name) __VA_ARGS__ = *reinterpret_cast<type(*) __VA_ARGS__>( \
      ::sim::shared_memory(&name##_site, sizeof(type __VA_ARGS__)))

struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
  return {x, y, z, w};
}

#define threadIdx (::sim::place.thread)
#define blockIdx (::sim::place.block)
#define blockDim (::sim::place.block_size)
#define gridDim (::sim::place.grid_size)

using std::max;
using std::min;

// Rounded to nearest even, denormal numbers kept, each by itself.
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }

template <class To, class From> static inline To cudasim_bits(From value) {
  static_assert(sizeof(To) == sizeof(From), "same size");
  To bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}
static inline unsigned __float_as_uint(float v) { return cudasim_bits<unsigned>(v); }

#define CUDASIM_HERE ::sim::Site{__FILE__, __LINE__}
#define __syncthreads() ::sim::block_barrier(CUDASIM_HERE)
#define __shfl_down_sync(mask, value, by) \
  cudasim_shuffle(value, mask, int(::sim::lane() + (by)), CUDASIM_HERE)
#define __shfl_up_sync(mask, value, by) \
  cudasim_shuffle(value, mask, int(::sim::lane()) - int(by), CUDASIM_HERE)
#define __syncwarp(...) ::sim::warp_barrier(::sim::mask_or_all(__VA_ARGS__), CUDASIM_HERE)

template <class T>
static inline T cudasim_shuffle(T value, unsigned mask, int from, sim::Site site) {
  static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
  uint64_t sent = 0;
  memcpy(&sent, &value, sizeof value);
  const uint64_t received = ::sim::exchange(sent, mask, from, site);
  memcpy(&value, &received, sizeof value);
  return value;
}
