// Applies two maps, of rows and of columns, in one go:
//
//   v[q]          = sum_t row_weight[row_offset[i] + t] * x[a, row_start[i] + t, q, c]
//   y[a, i, j, c] = sum_t column_weight[t, j] * v[column_start[j] + t]
//
// A row has `columns` times `channels` numbers. A warp has a tile of such rows to itself, EACH
// numbers a lane, neighbors where rows are whole vectors. It sums the rows that an output row
// reads, puts the sums into shared memory and sums those that each output reads. Then it goes on to
// the next output row.
//
// Without a map of rows (row_offset is null) an output row reads the row of its own number: that is
// how one pass along the last axis is made.
//
// TAPS is the most that an output reads of a row, so that lanes keep weights and places; 0 for any.
// An output that reads fewer reads a +0 with a weight of -0: their product -0 changes no sum.
#include "numbers.cuh"

// Where a sum lies: no two of 32 outputs whose bands begin 2, 4, .. apart share a bank.
__device__ __forceinline__ int spread(int index) { return index + index / WARP; }

template <typename In, typename Out, int EACH, int TAPS>
__global__ void __launch_bounds__(THREADS, EACH > 1 ? 2 : 4) march_rows(
    Out* __restrict__ y,       // [outer, out_rows, out_columns, channels]
    const In* __restrict__ x,  // [outer, in_rows, in_columns, channels]
    const int* __restrict__ row_start, const int* __restrict__ row_offset,
    const typename Compute<In>::type* __restrict__ row_weight,
    const int* __restrict__ column_start, const int* __restrict__ column_offset,
    const typename Compute<In>::type* __restrict__ column_weight,  // [most taps, out_columns]
    const int* __restrict__ tile_start,                            // [tiles + 1], of out_columns
    unsigned jobs, int in_rows, int out_rows, int in_columns, int out_columns, int channels,
    int tiles, int strip,
    int by_vectors,  // whether rows are whole vectors of EACH numbers, of 16 bytes at most
    Out fill) {
  typedef typename Compute<In>::type C;
  constexpr int KEPT = TAPS ? TAPS : 1;
  const bool wide = EACH > 1 && EACH * sizeof(In) <= 16 && by_vectors;
  constexpr int MAKES = EACH > 1 && TAPS > 4 ? EACH / 2 : EACH;  // outputs of a lane, at most
  constexpr int ZERO = EACH * (WARP + 1);
  SMEM(C, sums, [WARPS][ZERO + 1]);
  const int lane = threadIdx.x;
  const unsigned job = blockIdx.x * WARPS + threadIdx.y;
  if (job >= jobs) return;
  const unsigned across = job / tiles, strips = (out_rows + strip - 1) / strip;
  const unsigned a = across / strips, tile = job - across * tiles;
  const int64 in_row = (int64)in_columns * channels, out_row = (int64)out_columns * channels;
  const int first = tile_start[tile], last = tile_start[tile + 1] - 1;
  const int low = min(column_start[first], column_start[last]);
  const int high = max(column_start[first] + column_offset[first + 1] - column_offset[first],
                       column_start[last] + column_offset[last + 1] - column_offset[last]);
  const int64 edge = (int64)low * channels;
  const int skew = wide ? (int)(edge % EACH) : 0;  // numbers between a vector's start and the tile's
  const int width = (high - low) * channels + skew, results = (last + 1 - first) * channels;
  const int at = wide ? lane * EACH : lane;  // the first number of this lane
  const int i0 = (across - a * strips) * strip, i1 = min(i0 + strip, out_rows);
  const In* const from = x + (int64)a * in_rows * in_row + edge - skew + at;
  Out* to = y + ((int64)a * out_rows + i0) * out_row + (int64)first * channels + lane;

  // What this lane's outputs read of the sums.
  C* const mine = sums[threadIdx.y];
  if (lane == 0) mine[ZERO] = C(0);
  int column[MAKES], place[MAKES][KEPT], taps[MAKES];
  C weight[MAKES][KEPT];
#pragma unroll
  for (int e = 0; e < MAKES; e++) {
    const int slot = min(lane + e * WARP, results - 1);
    column[e] = first + slot / channels;
    taps[e] = column_offset[column[e] + 1] - column_offset[column[e]];
    place[e][0] = (column_start[column[e]] - low) * channels + skew + slot % channels;
#pragma unroll
    for (int t = TAPS - 1; t >= 0; t--) {
      place[e][t] = t < taps[e] ? spread(place[e][0] + t * channels) : ZERO;
      weight[e][t] = t < taps[e] ? column_weight[(int64)t * out_columns + column[e]] : C(-0.0);
    }
  }

  for (int i = i0; i < i1; i++, to += out_row) {
    const int begin = row_offset ? row_offset[i] : 0, end = row_offset ? row_offset[i + 1] : 0;
    const bool empty = row_offset && begin == end;
    const In* row = from + (row_offset ? row_start[i] : i) * in_row;
    C sum[EACH];
    begin_sums(sum);
    if (wide) {
      if (!row_offset && at < width) {
        const Vector<In, EACH> numbers = loaded<EACH>(row);
#pragma unroll
        for (int e = 0; e < EACH; e++) sum[e] = C(widened(numbers.at[e]));
      }
#pragma unroll 4
      for (int t = begin; t < end; t++, row += in_row) {
        if (at < width) add_vector(sum, row_weight[t], loaded<EACH>(row));
      }
#pragma unroll
      for (int e = 0; e < EACH; e++) mine[spread(lane * EACH + e)] = sum[e];
    } else {
      if (!row_offset) {
#pragma unroll
        for (int e = 0; e < EACH; e++) {
          if (lane + e * WARP < width) sum[e] = C(widened(row[e * WARP]));
        }
      }
#pragma unroll 4
      for (int t = begin; t < end; t++, row += in_row) {
        const C along = row_weight[t];
#pragma unroll
        for (int e = 0; e < EACH; e++) {
          if (lane + e * WARP < width) sum[e] = added(sum[e], along, C(widened(row[e * WARP])));
        }
      }
#pragma unroll
      for (int e = 0; e < EACH; e++) mine[spread(lane + e * WARP)] = sum[e];
    }
    __syncwarp();
#pragma unroll
    for (int e = 0; e < MAKES; e++) {
      if (lane + e * WARP >= results) continue;
      C result = nothing<C>();
      if (TAPS) {
#pragma unroll
        for (int t = 0; t < TAPS; t++) result = added(result, weight[e][t], mine[place[e][t]]);
      } else {
        const C* down = column_weight + column[e];
        for (int t = 0; t < taps[e]; t++, down += out_columns) {
          result = added(result, *down, mine[spread(place[e][0] + t * channels)]);
        }
      }
      to[e * WARP] = !empty && taps[e] ? rounded<Out>(result) : fill;
    }
    __syncwarp();
  }
}
