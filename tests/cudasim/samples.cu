// Small kernels, right and wrong, that show what the simulator sees.
#ifndef CUDASIM
#include <cuda_bf16.h>
#include <cuda_fp16.h>
// As in the sources of the kernels.
#define SMEM(type, name, ...) __shared__ type name __VA_ARGS__
#endif

template <bool kHasBarrier>
__global__ void reverse(const float* x, float* y, int n) {
  SMEM(float, held, [64]);
  held[threadIdx.x] = x[threadIdx.x];
  if (kHasBarrier) __syncthreads();
  y[threadIdx.x] = held[n - 1 - threadIdx.x];
}

__global__ void neighbors(const float* x, float* y) {
  const unsigned all = 0xffffffffu;
  const float before = __shfl_up_sync(all, x[threadIdx.x], 1);
  const float after = __shfl_down_sync(all, x[threadIdx.x], 1);
  y[threadIdx.x] = before + 100 * after;
}

__global__ void copy(const float* x, float* y, int offset) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  y[i] = x[i + offset];
}

__global__ void copy_vectors(const float* x, float* y, int offset) {
  const float4 held = *reinterpret_cast<const float4*>(x + offset + 4 * threadIdx.x);
  reinterpret_cast<float4*>(y)[threadIdx.x] = held;
}

__global__ void writes_input(float* x, float* y) { x[threadIdx.x] = y[threadIdx.x]; }

__global__ void leaves_before_barrier(float* y, int n) {
  if (threadIdx.x >= n) return;
  __syncthreads();
  y[threadIdx.x] = 1;
}

__global__ void two_barriers(float* y) {
  if (threadIdx.x < 16) __syncthreads();
  else
    __syncthreads();
  y[threadIdx.x] = 1;
}

__global__ void shuffles_outside_mask(float* y) {
  y[threadIdx.x] = __shfl_up_sync(0x0000ffffu, y[threadIdx.x], 1);
}

template <class T> __device__ T narrowed(float v);
template <> __device__ __half narrowed(float v) { return __float2half_rn(v); }
template <> __device__ __nv_bfloat16 narrowed(float v) { return __float2bfloat16_rn(v); }
__device__ float widened(__half v) { return __half2float(v); }
__device__ float widened(__nv_bfloat16 v) { return __bfloat162float(v); }

template <class T>
__global__ void widen(const T* x, float* y) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  y[i] = widened(x[i]);
}

template <class T>
__global__ void narrow(const float* x, T* y) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  y[i] = narrowed<T>(x[i]);
}
