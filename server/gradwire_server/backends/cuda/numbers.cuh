// Numbers, vectors and the arithmetic of sums.
//
// Sums follow backends/numpy_cpu.py: every product and every sum is rounded to the compute type,
// in ascending order of taps, and nothing is fused: the compiler contracts no __fmul_rn and no
// __fadd_rn. Sums begin with -0, which changes no number that is added to it: so the first tap
// assigns, as it must.
#pragma once

#ifndef CUDASIM
#include <cuda_bf16.h>
#include <cuda_fp16.h>
// Shared memory, spelled so that a host compiler can stand in for the device.
#define SMEM(type, name, ...) __shared__ type name __VA_ARGS__
#endif

typedef long long int64;

constexpr int THREADS = 256;
constexpr int WARP = 32;
constexpr int WARPS = THREADS / WARP;
constexpr unsigned ALL_LANES = 0xffffffffu;

// The compute type of what is read or written.
template <typename T> struct Compute { typedef float type; };
template <> struct Compute<double> { typedef double type; };

__device__ __forceinline__ float widened(float number) { return number; }
__device__ __forceinline__ double widened(double number) { return number; }
__device__ __forceinline__ float widened(__half number) { return __half2float(number); }
__device__ __forceinline__ float widened(__nv_bfloat16 number) { return __bfloat162float(number); }

// The one rounding, to nearest even.
template <typename T> __device__ __forceinline__ T rounded(float number);
template <> __device__ __forceinline__ float rounded(float number) { return number; }
template <> __device__ __forceinline__ __half rounded(float number) {
  return __float2half_rn(number);
}
template <> __device__ __forceinline__ __nv_bfloat16 rounded(float number) {
  return __float2bfloat16_rn(number);
}
template <typename T> __device__ __forceinline__ T rounded(double number) { return number; }

template <typename C> __device__ __forceinline__ C nothing() { return C(-0.0); }

// sum + weight * number
__device__ __forceinline__ float added(float sum, float weight, float number) {
  return __fadd_rn(sum, __fmul_rn(weight, number));
}
__device__ __forceinline__ double added(double sum, double weight, double number) {
  return __dadd_rn(sum, __dmul_rn(weight, number));
}

// Numbers that are read or written at once, 16 bytes at most; where V is no power of 2, not whole.
template <typename T, int V>
struct alignas(V % 2 ? sizeof(T) : sizeof(T) * V < 16 ? sizeof(T) * V : 16) Vector {
  T at[V];
};

template <int V, typename T> __device__ __forceinline__ Vector<T, V> loaded(const T* from) {
  return *reinterpret_cast<const Vector<T, V>*>(from);
}

template <typename T, int V> __device__ __forceinline__ void store(T* to, const Vector<T, V>& all) {
  *reinterpret_cast<Vector<T, V>*>(to) = all;
}

template <typename C, int V> __device__ __forceinline__ void begin_sums(C (&sum)[V]) {
#pragma unroll
  for (int v = 0; v < V; v++) sum[v] = nothing<C>();
}

template <typename C, int V>
__device__ __forceinline__ void copy_sums(C (&to)[V], const C (&from)[V]) {
#pragma unroll
  for (int v = 0; v < V; v++) to[v] = from[v];
}

// Adds weight times each number of a vector to a sum of its own.
template <typename C, typename T, int V>
__device__ __forceinline__ void add_vector(C (&sum)[V], C weight, const Vector<T, V>& numbers) {
#pragma unroll
  for (int v = 0; v < V; v++) sum[v] = added(sum[v], weight, C(widened(numbers.at[v])));
}

template <typename T, typename C, int V>
__device__ __forceinline__ Vector<T, V> rounded_vector(const C (&sum)[V]) {
  Vector<T, V> all;
#pragma unroll
  for (int v = 0; v < V; v++) all.at[v] = rounded<T>(sum[v]);
  return all;
}

template <typename T, int V> __device__ __forceinline__ Vector<T, V> filled(T fill) {
  Vector<T, V> all;
#pragma unroll
  for (int v = 0; v < V; v++) all.at[v] = fill;
  return all;
}
