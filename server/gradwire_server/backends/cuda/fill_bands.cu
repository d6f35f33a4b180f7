// Writes one value to all results of some outputs of the middle axis: y[a, index[i], b] = fill.
#include "numbers.cuh"

template <typename T>
__global__ void __launch_bounds__(THREADS) fill_bands(
    T* __restrict__ y,              // [outer, outputs, inner]
    const int* __restrict__ index,  // [count]
    int64 outer, int64 inner, int outputs, int count, T fill) {
  const int64 jobs = outer * count * inner;
  for (int64 job = (int64)blockIdx.x * THREADS + threadIdx.x; job < jobs;
       job += (int64)gridDim.x * THREADS) {
    const int64 row = job / inner;
    const int64 a = row / count;
    y[(a * outputs + index[row - a * count]) * inner + (job - row * inner)] = fill;
  }
}
