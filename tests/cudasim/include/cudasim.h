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
#define __host__
#define __restrict__ __restrict
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __grid_constant__
#define __constant__ static

// `type name dimensions` in shared memory.
#define SMEM(type, name, ...)                                       \
  static ::sim::SharedSite name##_site;                             \
  type(&name) __VA_ARGS__ = *reinterpret_cast<type(*) __VA_ARGS__>( \
      ::sim::shared_memory(&name##_site, sizeof(type __VA_ARGS__)))

#define CUDASIM_VECTORS(T, N)                                                              \
  struct alignas(2 * sizeof(T)) N##2 { T x, y; };                                          \
  struct alignas(4 * sizeof(T) > 16 ? 16 : 4 * sizeof(T)) N##4 { T x, y, z, w; };           \
  static inline N##2 make_##N##2(T x, T y) { return {x, y}; }                              \
  static inline N##4 make_##N##4(T x, T y, T z, T w) { return {x, y, z, w}; }
CUDASIM_VECTORS(float, float)
CUDASIM_VECTORS(double, double)
CUDASIM_VECTORS(int, int)
CUDASIM_VECTORS(unsigned, uint)
CUDASIM_VECTORS(short, short)
CUDASIM_VECTORS(unsigned short, ushort)
CUDASIM_VECTORS(long long, longlong)

#define threadIdx (::sim::place.thread)
#define blockIdx (::sim::place.block)
#define blockDim (::sim::place.block_size)
#define gridDim (::sim::place.grid_size)
static constexpr int warpSize = 32;

using std::max;
using std::min;

// Rounded to nearest even, denormal numbers kept, each by itself.
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline double __dsub_rn(double a, double b) { return a - b; }
static inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
static inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }

template <class To, class From> static inline To cudasim_bits(From value) {
  static_assert(sizeof(To) == sizeof(From), "same size");
  To bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}
static inline unsigned __float_as_uint(float v) { return cudasim_bits<unsigned>(v); }
static inline float __uint_as_float(unsigned v) { return cudasim_bits<float>(v); }
static inline int __float_as_int(float v) { return cudasim_bits<int>(v); }
static inline float __int_as_float(int v) { return cudasim_bits<float>(v); }
static inline long long __double_as_longlong(double v) { return cudasim_bits<long long>(v); }
static inline double __longlong_as_double(long long v) { return cudasim_bits<double>(v); }

// Hints of how to cache change no value.
template <class T> static inline T __ldg(const T* p) { return *p; }
template <class T> static inline T __ldcs(const T* p) { return *p; }
template <class T> static inline T __ldcg(const T* p) { return *p; }
template <class T> static inline T __ldlu(const T* p) { return *p; }
template <class T> static inline void __stcs(T* p, T v) { *p = v; }
template <class T> static inline void __stcg(T* p, T v) { *p = v; }

#define CUDASIM_HERE ::sim::Site{__FILE__, __LINE__}
#define __syncthreads() ::sim::block_barrier(CUDASIM_HERE)
#define __trap() ::sim::fail("__trap() at %s:%d", __FILE__, __LINE__)
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
