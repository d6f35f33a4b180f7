// Applies two maps, of rows and of columns, to images with channels side by side:
//
//   v[q]          = sum_t row_weight[..] * x[a, row_start[i] + t, q, c]
//   y[a, i, j, c] = sum_t column_weight[..] * v[column_start[j] + t]
//
// A thread has V channels of an output row i. It marches along the columns, sums the rows of each
// column once, and adds that to the at most OPEN outputs that read it. Maps of columns ascend.
#include "numbers.cuh"

// What a column adds to which outputs.
template <typename C, int OPEN> struct alignas(16) Record {
  C weight[OPEN];
  int first, count;
};

template <typename In, typename Out, int V, int OPEN>
__global__ void __launch_bounds__(THREADS, V * OPEN > 16 ? 2 : 3) march_channels(
    Out* __restrict__ y,       // [outer, out_rows, out_columns, channels]
    const In* __restrict__ x,  // [outer, in_rows, in_columns, channels]
    const int* __restrict__ row_start, const int* __restrict__ row_offset,
    const typename Compute<In>::type* __restrict__ row_weight,
    const int* __restrict__ column_start, const int* __restrict__ column_offset,
    const Record<typename Compute<In>::type, OPEN>* __restrict__ record,  // [in_columns]
    unsigned jobs, int in_rows, int out_rows, int in_columns, int out_columns,
    int channels,  // a multiple of V
    int strip, Out fill) {
  typedef typename Compute<In>::type C;
  const unsigned job = blockIdx.x * THREADS + threadIdx.x;
  if (job >= jobs) return;
  const unsigned vectors = channels / V, strips = (out_columns + strip - 1) / strip;
  const unsigned deep = job / vectors, down = deep / out_rows, a = down / strips;
  const int64 in_row = (int64)in_columns * channels;
  const int i = deep - down * out_rows, row_begin = row_offset[i], row_end = row_offset[i + 1];
  const int first = (down - a * strips) * strip, stop = min(first + strip, out_columns);
  const int low = column_start[first];
  const int high = column_start[stop - 1] + column_offset[stop] - column_offset[stop - 1];
  const In* from = x + (((int64)a * in_rows + row_start[i]) * in_columns + low) * channels +
                   (job - deep * vectors) * V;
  Out* to = y + (((int64)a * out_rows + i) * out_columns + first) * (int64)channels +
            (job - deep * vectors) * V;
  C sum[OPEN][V];  // of outputs j, j + 1, ..
#pragma unroll
  for (int n = 0; n < OPEN; n++) begin_sums(sum[n]);
  int j = low < high ? min(record[low].first, first) : first;
  for (int q = low;; q++, from += channels) {
    // Outputs that read nothing from here on are done; those before the strip are others' work.
    for (const int next = q < high ? min(record[q].first, stop) : stop; j < next; j++) {
      if (j >= first) {
        const bool empty = row_begin == row_end || column_offset[j] == column_offset[j + 1];
        store(to, empty ? filled<Out, V>(fill) : rounded_vector<Out>(sum[0]));
        to += channels;
      }
#pragma unroll
      for (int n = 0; n + 1 < OPEN; n++) copy_sums(sum[n], sum[n + 1]);
      begin_sums(sum[OPEN - 1]);
    }
    if (q >= high) break;
    C column[V];
    begin_sums(column);
    const In* tap = from;
#pragma unroll 4
    for (int t = row_begin; t < row_end; t++, tap += in_row) {
      add_vector(column, row_weight[t], loaded<V>(tap));
    }
    const Record<C, OPEN> now = record[q];
#pragma unroll
    for (int n = 0; n < OPEN; n++) {
      if (n >= now.count) continue;
#pragma unroll
      for (int v = 0; v < V; v++) sum[n][v] = added(sum[n][v], now.weight[n], column[v]);
    }
  }
}
