// Copies one number to each output, of three axes that have a table each:
//
//   y[a, i, j, k, b] = x[a, deep[i], row[j], column[k], b],   or fill where one of them is -1
//
// Nearest neighbors with weights of 1 are that, whatever the type: only its size is looked at.
// A thread makes V neighbors b of `strip` outputs j.
#include "numbers.cuh"

template <typename T, int V>
__global__ void __launch_bounds__(THREADS) select_inputs(
    T* __restrict__ y,        // [outer, depth, height, width, inner]
    const T* __restrict__ x,  // [outer, in_depth, in_height, in_width, inner]
    const int* __restrict__ deep, const int* __restrict__ row, const int* __restrict__ column,
    unsigned jobs, int64 inner,  // inner % V == 0
    int in_depth, int in_height, int in_width, int depth, int height, int width,
    int strip, T fill) {
  const unsigned job = blockIdx.x * THREADS + threadIdx.x;
  if (job >= jobs) return;
  const unsigned vectors = inner / V, strips = (height + strip - 1) / strip;
  const unsigned point = job / vectors, line = point / width, image = line / strips;
  const unsigned a = image / depth;
  const int64 b = (int64)(job - point * vectors) * V;
  const int i = deep[image - a * depth], k = column[point - line * width];
  const int first = (line - image * strips) * strip, stop = min(first + strip, height);
  const T* from = x + ((((int64)a * in_depth + i) * in_height) * in_width + k) * inner + b;
  T* to = y + (((int64)image * height + first) * width + (point - line * width)) * inner + b;
  for (int j = first; j < stop; j++, to += width * inner) {
    if (i < 0 || k < 0 || row[j] < 0) {
      store(to, filled<T, V>(fill));
    } else {
      store(to, loaded<V>(from + (int64)row[j] * in_width * inner));
    }
  }
}
