// Applies one map along the last axis:
//
//   y[a, o] = sum_t weight[offset[o] + t] * x[a, start[o] + t],   0 <= t < offset[o+1] - offset[o]
//
// A block makes a tile of outputs of some rows a, one thread each. It stages what they read in
// shared memory, part after part, so that neighbors are read together; bands ascend or descend.
#include "numbers.cuh"

constexpr int STAGED = 2048;

// Where a number is staged: no two of 32 outputs whose bands begin 2, 4, .. apart share a bank.
__device__ __forceinline__ int staged_at(int index) { return index + index / WARP; }

template <typename In, typename Out>
__global__ void __launch_bounds__(THREADS, 4) contiguous_pass(
    Out* __restrict__ y,       // [outer, outputs]
    const In* __restrict__ x,  // [outer, inputs]
    const int* __restrict__ start, const int* __restrict__ offset,
    const typename Compute<In>::type* __restrict__ weight,
    int64 outer, int inputs, int outputs,
    int rows, int tile,  // of a block; rows * tile <= THREADS
    Out fill) {          // of outputs without taps
  typedef typename Compute<In>::type C;
  SMEM(C, staged, [STAGED + STAGED / WARP]);
  const unsigned tiles = (outputs + tile - 1) / tile;
  const int row = threadIdx.x / tile, column = threadIdx.x - row * tile;
  const int most = STAGED / rows;
  // Threads that stage a row together.
  const int group = rows < WARPS ? THREADS : WARP;
  const unsigned band = blockIdx.x / tiles;
  const int64 a = (int64)band * rows;
  const int height = (int)min((int64)rows, outer - a);
  const int first = (blockIdx.x - band * tiles) * tile, last = min(first + tile, outputs) - 1;
  const int o = first + column;
  const bool mine = row < height && o <= last;
  const int begin = mine ? offset[o] : 0, end = mine ? offset[o + 1] : 0;
  const int from = mine ? start[o] : 0;
  C sum = nothing<C>();
  const int low = min(start[first], start[last]);
  const int high = max(start[first] + offset[first + 1] - offset[first],
                       start[last] + offset[last + 1] - offset[last]);
  for (int part = low; part < high; part += most) {
    const int width = min(most, high - part);
    for (int r = threadIdx.x / group; r < height; r += THREADS / group) {
      const In* line = x + (a + r) * inputs + part;
      for (int i = threadIdx.x % group; i < width; i += group) {
        staged[staged_at(r * width + i)] = C(widened(line[i]));
      }
    }
    __syncthreads();
    const int reached = max(from, part), beyond = min(from + end - begin, part + width);
    for (int i = reached; i < beyond; i++) {
      sum = added(sum, weight[begin + (i - from)], staged[staged_at(row * width + i - part)]);
    }
    __syncthreads();
  }
  if (mine) y[(a + row) * outputs + o] = begin < end ? rounded<Out>(sum) : fill;
}
