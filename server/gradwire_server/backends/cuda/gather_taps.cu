// Applies two maps, of rows and of columns, whose bands have at most TAPS taps:
//
//   v[k]          = sum_t row_weight[..] * x[a, row_start[i] + t, column_start[j] + k, c]
//   y[a, i, j, c] = sum_k column_weight[..] * v[k]
//
// A thread has V neighbors of an output row, whose places and weights it keeps while it goes on to
// the next output row. Where outputs have no taps it only writes.
//
// A missing tap of a column is a sum of +0 with a weight of -0: their product -0 changes no sum.
#include "numbers.cuh"

template <typename In, typename Out, int TAPS>
__global__ void __launch_bounds__(THREADS, 3) gather_taps(
    Out* __restrict__ y,       // [outer, out_rows, out_columns, channels]
    const In* __restrict__ x,  // [outer, in_rows, in_columns, channels]
    const int* __restrict__ row_start, const int* __restrict__ row_offset,
    const typename Compute<In>::type* __restrict__ row_weight,
    const int* __restrict__ column_start, const int* __restrict__ column_offset,
    const typename Compute<In>::type* __restrict__ column_weight,
    unsigned jobs, int in_rows, int out_rows,
    int in_row, int out_row,  // numbers of a row; out_row % V == 0
    int channels, int strip, Out fill) {
  typedef typename Compute<In>::type C;
  // Neighbors read places that are apart: more of them would take more accesses to the cache.
  constexpr int V = sizeof(Out) == 2 && TAPS > 1 ? 4 : 16 / sizeof(Out);
  const unsigned job = blockIdx.x * THREADS + threadIdx.x;
  if (job >= jobs) return;
  const unsigned vectors = out_row / V, strips = (out_rows + strip - 1) / strip;
  const unsigned across = job / vectors, a = across / strips;
  const int b = (job - across * vectors) * V;
  const int first = (across - a * strips) * strip, stop = min(first + strip, out_rows);
  int taps[V];
  unsigned place[V][TAPS];
  C weight[V][TAPS];
#pragma unroll
  for (int v = 0; v < V; v++) {
    const int j = (b + v) / channels, c = b + v - j * channels, begin = column_offset[j];
    taps[v] = column_offset[j + 1] - begin;
#pragma unroll
    for (int k = 0; k < TAPS; k++) {
      const bool there = k < taps[v];
      place[v][k] = there ? (column_start[j] + k) * channels + c : 0;
      weight[v][k] = there ? column_weight[begin + k] : C(-0.0);
    }
  }
  const In* const from = x + (int64)a * in_rows * in_row;
  Out* to = y + ((int64)a * out_rows + first) * out_row + b;
  for (int i = first; i < stop; i++, to += out_row) {
    Vector<Out, V> all = filled<Out, V>(fill);
    const int begin = row_offset[i], end = row_offset[i + 1];
    if (begin < end) {
      C sum[V][TAPS];
#pragma unroll
      for (int v = 0; v < V; v++) begin_sums(sum[v]);
      const In* row = from + (int64)row_start[i] * in_row;
      const int beyond = TAPS > 1 ? end : begin + 1;
#pragma unroll 1
      for (int t = begin; t < beyond; t++, row += in_row) {
        const C along = row_weight[t];
#pragma unroll
        for (int v = 0; v < V; v++) {
#pragma unroll
          for (int k = 0; k < TAPS; k++) {
            sum[v][k] = added(sum[v][k], along, C(widened(row[place[v][k]])));
          }
        }
      }
#pragma unroll
      for (int v = 0; v < V; v++) {
        C result = nothing<C>();
#pragma unroll
        for (int k = 0; k < TAPS; k++) {
          result = added(result, weight[v][k], k == 0 || k < taps[v] ? sum[v][k] : C(0));
        }
        if (taps[v]) all.at[v] = rounded<Out>(result);
      }
    }
    store(to, all);
  }
}
