// Writes numbers of one type as numbers of another: y[i] = x[i], rounded once.
// Of one and the same type every bit is kept, those of a NaN too.
#include "numbers.cuh"

template <typename Out, typename In> struct Converted {
  static __device__ __forceinline__ Out of(In number) { return rounded<Out>(widened(number)); }
};
template <typename T> struct Converted<T, T> {
  static __device__ __forceinline__ T of(T number) { return number; }
};

template <typename In, typename Out>
__global__ void __launch_bounds__(THREADS) convert(
    Out* __restrict__ y,       // [count]
    const In* __restrict__ x,  // [count]
    int64 count) {
  for (int64 i = (int64)blockIdx.x * THREADS + threadIdx.x; i < count;
       i += (int64)gridDim.x * THREADS) {
    y[i] = Converted<Out, In>::of(x[i]);
  }
}
