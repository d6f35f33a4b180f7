// Applies two maps, of rows and of columns, whose bands advance by S inputs an output:
//
//   v[q]    = sum_k row_weight[i, k] * x[a, S*i - HALO + k, q]        0 <= k < TAPS = S + 2*HALO
//   y[a, i, j] = sum_k column_weight[j, k] * v[S*j - HALO + k]
//
// A lane reads P neighbors of a row at once and marches down the rows, each of which it reads once
// for all outputs that it is part of. When an output row is complete, lanes get the sums of HALO
// columns on both sides from their neighbors.
//
// A row is split into tiles of `lanes` lanes, a part of a warp; their outermost lanes sum the halo
// too. There are no branches: where there is no input, the weight is -0 and the number +0, so that
// their product -0 changes no sum.
#include "numbers.cuh"

template <typename In, typename Out, int S, int HALO>
__global__ void __launch_bounds__(THREADS, (HALO < 3 ? 2 : 1) + (sizeof(In) == 4)) march_steps(
    Out* __restrict__ y,       // [outer, out_rows, out_columns]
    const In* __restrict__ x,  // [outer, S * out_rows, S * out_columns]
    const typename Compute<In>::type* __restrict__ row_weight,     // [out_rows, TAPS]
    const typename Compute<In>::type* __restrict__ column_weight,  // [out_columns, TAPS]
    unsigned jobs, int out_rows, int out_columns, int strip, int lanes, int tiles) {
  typedef typename Compute<In>::type C;
  constexpr int LEAST = HALO < 3 ? S : 4;
  constexpr int P = 16 / sizeof(In) > LEAST ? 16 / sizeof(In) : LEAST;
  constexpr int V = P / S, TAPS = S + 2 * HALO;
  constexpr int OPEN = (TAPS + S - 1) / S;  // outputs that read one row
  static_assert(HALO <= P, "the halo is a neighbor's");
  const int in_rows = out_rows * S, in_columns = out_columns * S;
  const int segment = threadIdx.x / lanes, lane = threadIdx.x - segment * lanes;
  const unsigned warp = (blockIdx.x * WARPS + threadIdx.y) * (WARP / lanes);
  if (warp >= jobs) return;
  // All lanes of a warp go on together; those without a job do another's and write nothing.
  const unsigned job = min(warp + segment, jobs - 1);
  const unsigned strips = (out_rows + strip - 1) / strip;
  const unsigned across = job / tiles, a = across / strips, tile = job - across * tiles;
  const int column = ((int)tile * lanes + lane) * P;
  const bool reads = column < in_columns, writes = reads && warp + segment < jobs;
  const bool left = column > 0, right = column + P < in_columns;
  // Halo that no other lane has: in front of the first one, behind the last one.
  const bool begins = lane == 0, ends = lane == lanes - 1;
  const bool alone = (begins && left) || (ends && right);
  const int beside = begins ? -HALO : P;
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
  // Of outputs i, i - 1, ..
  C sum[OPEN][P], halo[OPEN][HALO ? HALO : 1];
#pragma unroll
  for (int n = 0; n < OPEN; n++) {
    begin_sums(sum[n]);
    begin_sums(halo[n]);
  }
#pragma unroll 2
  for (int i = i0; i < i0 + strip + OPEN - 1; i++) {
    Vector<In, P> row[S];
    Vector<In, HALO ? HALO : 1> edge[S];
#pragma unroll
    for (int s = 0; s < S; s++, from += in_columns) {
      const int r = i * S - HALO + s;
      const bool inside = r >= 0 && r < in_rows;
      row[s] = inside && reads ? loaded<P>(from) : filled<In, P>(rounded<In>(C(0)));
#pragma unroll
      for (int h = 0; h < HALO; h++) {
        edge[s].at[h] = inside && alone ? from[beside + h] : rounded<In>(C(0));
      }
    }
#pragma unroll
    for (int n = OPEN - 1; n >= 0; n--) {
      if (n > 0) {
        copy_sums(sum[n], sum[n - 1]);
        copy_sums(halo[n], halo[n - 1]);
      } else {
        begin_sums(sum[n]);
        begin_sums(halo[n]);
      }
      const int64 output = min(max(i - n, 0), out_rows - 1);
#pragma unroll
      for (int s = 0; s < S; s++) {
        if (n * S + s >= TAPS) continue;
        const C weight = row_weight[output * TAPS + n * S + s];
        add_vector(sum[n], weight, row[s]);
        if (HALO) add_vector(halo[n], weight, edge[s]);
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
      window[h] = !left ? C(0) : begins ? halo[OPEN - 1][h] : before;
      window[HALO + P + h] = !right ? C(0) : ends ? halo[OPEN - 1][h] : behind;
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
