// Applies two maps, of rows and of columns, whose bands advance by S inputs an output:
//
//   v[q]    = sum_k row_weight[i, k] * x[a, S*i - HALO + k, q]        0 <= k < TAPS = S + 2*HALO
//   y[a, i, j] = sum_k column_weight[j, k] * v[S*j - HALO + k]
//
// A lane reads P neighbors of a row at once and marches down the rows, each of which it reads once
// for all outputs that it is part of. When an output row is complete, lanes get the sums of HALO
// columns on both sides from their neighbors.
//
// A row is split into tiles of `lanes` lanes; a warp has as many tiles as fit. Tiles overlap: the
// outermost `margin` lanes of a tile only sum columns for their neighbors. There are no branches:
// where there is no input, the weight is -0 and the number +0, so that their product -0 changes no
// sum.
#include "numbers.cuh"

// Returns a vector, or +0 without a load. A load that is not made leaves its registers 0, so that
// later loads need not wait for it.
template <int V, typename T>
__device__ __forceinline__ Vector<T, V> loaded_if(bool there, const T* from) {
  constexpr int COUNT = sizeof(T) * V / sizeof(uint4);
  uint4 raw[COUNT];
#pragma unroll
  for (int n = 0; n < COUNT; n++) {
    raw[n] = make_uint4(0, 0, 0, 0);
    if (there) raw[n] = reinterpret_cast<const uint4*>(from)[n];
  }
  Vector<T, V> all;
  memcpy(&all, raw, sizeof(all));
  return all;
}

template <typename In, typename Out, int S, int HALO>
__global__ void __launch_bounds__(THREADS, sizeof(In) == 4 ? 3 : 2) march_steps(
    Out* __restrict__ y,       // [outer, out_rows, out_columns]
    const In* __restrict__ x,  // [outer, S * out_rows, S * out_columns]
    const typename Compute<In>::type* __restrict__ row_weight,     // [out_rows, TAPS]
    const typename Compute<In>::type* __restrict__ column_weight,  // [out_columns, TAPS]
    unsigned jobs, int out_rows, int out_columns, int strip, int lanes, int margin, int tiles) {
  typedef typename Compute<In>::type C;
  constexpr int LEAST = HALO < 3 ? S : 4;
  constexpr int P = 16 / sizeof(In) > LEAST ? 16 / sizeof(In) : LEAST;
  constexpr int V = P / S, TAPS = S + 2 * HALO;
  constexpr int OPEN = (TAPS + S - 1) / S;  // outputs that read one row
  static_assert(HALO <= P, "the halo is a neighbor's");
  const int in_rows = out_rows * S, in_columns = out_columns * S;
  const int segment = threadIdx.x / lanes, lane = threadIdx.x - segment * lanes;
  const int segments = WARP / lanes;
  const unsigned warp = (blockIdx.x * WARPS + threadIdx.y) * segments;
  if (warp >= jobs) return;
  // All lanes of a warp go on together; those without a job do another's and write nothing.
  const unsigned job = min(warp + segment, jobs - 1);
  const unsigned strips = (out_rows + strip - 1) / strip;
  const unsigned across = job / tiles, a = across / strips, tile = job - across * tiles;
  const int column = ((int)tile * (lanes - 2 * margin) + lane - margin) * P;
  const bool reads = column >= 0 && column < in_columns;
  const bool writes = reads && lane >= margin && lane < lanes - margin && segment < segments &&
                      warp + segment < jobs;
  const bool left = column > 0, right = column + P < in_columns;
  C across_weight[V][TAPS];
#pragma unroll
  for (int v = 0; v < V; v++) {
#pragma unroll
    for (int k = 0; k < TAPS; k++) {
      across_weight[v][k] = reads ? column_weight[(int64)(column / S + v) * TAPS + k] : C(0);
    }
  }
  const int i0 = (across - a * strips) * strip, i1 = min(i0 + strip, out_rows);
  const In* from = x + ((int64)a * in_rows + i0 * (int64)S - HALO) * in_columns + column;
  Out* to = y + ((int64)a * out_rows + i0) * out_columns + column / S;
  C sum[OPEN][P];  // of outputs i, i - 1, ..
#pragma unroll
  for (int n = 0; n < OPEN; n++) begin_sums(sum[n]);
#pragma unroll 2
  for (int i = i0; i < i0 + strip + OPEN - 1; i++) {
    Vector<In, P> row[S];
#pragma unroll
    for (int s = 0; s < S; s++, from += in_columns) {
      const int r = i * S - HALO + s;
      row[s] = loaded_if<P>(reads && r >= 0 && r < in_rows, from);
    }
#pragma unroll
    for (int n = OPEN - 1; n >= 0; n--) {
      if (n > 0) {
        copy_sums(sum[n], sum[n - 1]);
      } else {
        begin_sums(sum[n]);
      }
      const int64 output = min(max(i - n, 0), out_rows - 1);
#pragma unroll
      for (int s = 0; s < S; s++) {
        if (n * S + s >= TAPS) continue;
        add_vector(sum[n], row_weight[output * TAPS + n * S + s], row[s]);
      }
    }
    // Output row i - (OPEN - 1) is complete down its columns.
    C window[HALO + P + HALO];
#pragma unroll
    for (int p = 0; p < P; p++) window[HALO + p] = sum[OPEN - 1][p];
#pragma unroll
    for (int h = 0; h < HALO; h++) {
      const C before = __shfl_up_sync(ALL_LANES, sum[OPEN - 1][P - HALO + h], 1);
      const C behind = __shfl_down_sync(ALL_LANES, sum[OPEN - 1][h], 1);
      window[h] = left ? before : C(0);
      window[HALO + P + h] = right ? behind : C(0);
    }
    C result[V];
#pragma unroll
    for (int v = 0; v < V; v++) {
      result[v] = nothing<C>();
#pragma unroll
      for (int k = 0; k < TAPS; k++) {
        result[v] = added(result[v], across_weight[v][k], window[v * S + k]);
      }
    }
    if (i < i0 + OPEN - 1) continue;
    if (writes && i - (OPEN - 1) < i1) store(to, rounded_vector<Out>(result));
    to += out_columns;
  }
}
