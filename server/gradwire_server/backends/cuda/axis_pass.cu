// Applies one map along the middle axis:
//
//   y[a, o, b] = sum_t weight[offset[o] + t] * x[a, start[o] + t, b],   0 <= t < offset[o+1] - offset[o]
//
// A thread makes V neighbors b of `strip` outputs o, one after the other.
#include "numbers.cuh"

template <typename In, typename Out, int V>
__global__ void __launch_bounds__(THREADS) axis_pass(
    Out* __restrict__ y,       // [outer, outputs, inner]
    const In* __restrict__ x,  // [outer, inputs, inner]
    const int* __restrict__ start, const int* __restrict__ offset,
    const typename Compute<In>::type* __restrict__ weight,
    unsigned jobs, int64 inner,  // inner % V == 0
    int inputs, int outputs, int strip,
    Out fill) {  // of outputs without taps
  typedef typename Compute<In>::type C;
  const unsigned job = blockIdx.x * THREADS + threadIdx.x;
  if (job >= jobs) return;
  const unsigned vectors = inner / V, strips = (outputs + strip - 1) / strip;
  const unsigned row = job / vectors, a = row / strips;
  const int first = (row - a * strips) * strip, stop = min(first + strip, outputs);
  const int64 b = (int64)(job - row * vectors) * V;
  const In* from = x + (int64)a * inputs * inner + b;
  Out* to = y + ((int64)a * outputs + first) * inner + b;
  for (int o = first; o < stop; o++, to += inner) {
    const int begin = offset[o], end = offset[o + 1];
    C sum[V];
    begin_sums(sum);
    const In* tap = from + start[o] * inner;
#pragma unroll 4
    for (int t = begin; t < end; t++, tap += inner) add_vector(sum, weight[t], loaded<V>(tap));
    if (begin < end) {
      store(to, rounded_vector<Out>(sum));
    } else {
      store(to, filled<Out, V>(fill));
    }
  }
}
