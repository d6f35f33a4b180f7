// Runs a launch block by block; a block's threads run in turn until each waits or has returned.
#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "internal.h"

namespace sim {
namespace {
char message[1024];
constexpr int kWarp = 32;
enum State { kReady, kAtBlockBarrier, kAtWarpBarrier, kReturned };
enum Order { kForward = 0, kReverse = 1 };  // others seed a permutation, as module.py has them

struct Thread {
  Fiber fiber;
  uint3 index;
  State state;
  Site site;
  unsigned mask;
  uint64_t sent;
  unsigned barriers[2];
};
std::vector<Thread> threads;
std::vector<Carrier> carriers;
int current = -1;
int thread_count;
Kernel kernel;
void** kernel_arguments;

// Barrier n uses point n % 2: who is at barrier n + 1 already does not tell those still at n.
char block_points[2], warp_points[32][2], start_point, end_point;

void wait_at(State state, Site site, unsigned mask) {
  Thread& own = threads[current];
  const bool is_warp = state == kAtWarpBarrier;
  const unsigned turn = own.barriers[is_warp]++ & 1;
  void* point = is_warp ? &warp_points[current / kWarp][turn] : &block_points[turn];
  own.state = state;
  own.site = site;
  own.mask = mask;
  releases(point);
  leave(own.fiber, false);
  acquires(point);
}

void run_thread() {
  entered(threads[current].fiber);
  acquires(&start_point);
  kernel(kernel_arguments);
  releases(&end_point);  // comes before what the host does next, not before other blocks
  threads[current].state = kReturned;
  leave(threads[current].fiber, true);
  abort();
}

bool same(Site a, Site b) { return a.file == b.file && a.line == b.line; }

// Lets go the lanes of a warp that wait with a mask all of whose lanes do, or have returned.
bool release_warp(int first) {
  bool released = false;
  const int stop = std::min(thread_count, first + kWarp);
  for (int lead = first; lead < stop; lead++) {
    if (threads[lead].state != kAtWarpBarrier) continue;
    const unsigned mask = threads[lead].mask;
    bool complete = true;
    for (int i = first; i < stop; i++) {
      if (!(mask >> (i - first) & 1) || threads[i].state == kReturned) continue;
      complete = complete && threads[i].state == kAtWarpBarrier && threads[i].mask == mask;
      if (complete && !same(threads[i].site, threads[lead].site)) {
        place.thread = threads[i].index;
        report("lanes wait at different warp operations: %s:%d and %s:%d", threads[lead].site.file,
               threads[lead].site.line, threads[i].site.file, threads[i].site.line);
        return false;
      }
    }
    if (!complete) continue;
    for (int i = first; i < stop; i++)
      if ((mask >> (i - first) & 1) && threads[i].state == kAtWarpBarrier)
        threads[i].state = kReady;
    released = true;
  }
  return released;
}

// Lets the block go on where all of it waits at one barrier; reports where that cannot come.
bool release_block() {
  const Thread* first = nullptr;
  int waiting = 0, returned = 0;
  for (int i = 0; i < thread_count; i++) {
    const Thread& one = threads[i];
    returned += one.state == kReturned;
    if (one.state != kAtBlockBarrier) continue;
    waiting++;
    if (!first) first = &one;
    if (!same(first->site, one.site)) {
      place.thread = one.index;
      report("threads wait at different __syncthreads: %s:%d and %s:%d", first->site.file,
             first->site.line, one.site.file, one.site.line);
      return false;
    }
  }
  if (returned == thread_count) return false;
  if (waiting < thread_count) {
    report("barrier divergence: %d threads wait at %s:%d, %d have returned, %d wait in their warp",
           waiting, first ? first->site.file : "no barrier", first ? first->site.line : 0, returned,
           thread_count - waiting - returned);
    return false;
  }
  for (int i = 0; i < thread_count; i++) threads[i].state = kReady;
  return true;
}

class Turns {
 public:
  Turns(int count, unsigned order) : order_(order), random_(order * 0x9E3779B97F4A7C15ull | 1) {
    for (int i = 0; i < count; i++) turns_.push_back(order == kReverse ? count - 1 - i : i);
  }
  const std::vector<int>& next() {
    if (order_ > kReverse)
      for (size_t i = turns_.size() - 1; i > 0; i--) std::swap(turns_[i], turns_[draw() % (i + 1)]);
    return turns_;
  }

 private:
  uint64_t draw() {
    random_ ^= random_ << 13;
    random_ ^= random_ >> 7;
    return random_ ^= random_ << 17;
  }
  unsigned order_;
  uint64_t random_;
  std::vector<int> turns_;
};

void begin_block(size_t serial, size_t whole_bytes) {
  const dim3 size = place.block_size;
  begin_block_memory(whole_bytes);
  releases(&start_point);
  for (int i = 0; i < thread_count; i++) {
    Thread& one = threads[i];
    one = {};
    one.index = {i % size.x, i / size.x % size.y, i / (size.x * size.y)};
    // Rotated: few pairs of threads of two blocks share a carrier, whose accesses count as ordered.
    prepare(one.fiber, carriers[(i + serial * 7919) % thread_count], run_thread);
  }
}

void run_block(Turns& turns) {
  for (;;) {
    for (int i : turns.next()) {
      if (threads[i].state != kReady) continue;
      current = i;
      place.thread = threads[i].index;
      enter(threads[i].fiber);
      if (failed()) return;
    }
    bool released = false;
    for (int first = 0; first < thread_count; first += kWarp) {
      released |= release_warp(first);
      if (failed()) return;
    }
    if (!released && !release_block()) return;
  }
}

void run_block_until_fault(Turns& turns) {
  if (sigsetjmp(after_fault, 1)) return;
  run_block(turns);
}

void begin_launch(const unsigned* grid, const unsigned* block) {
  place.grid_size = {grid[0], grid[1], grid[2]};
  place.block_size = {block[0], block[1], block[2]};
  thread_count = int(block[0] * block[1] * block[2]);
  threads.resize(std::max<size_t>(threads.size(), thread_count));
  while (carriers.size() < size_t(thread_count)) carriers.push_back(make_carrier());
  begin_fibers();
}

bool is_launchable(const unsigned* grid, const unsigned* block, size_t shared, unsigned most) {
  const size_t count = size_t(block[0]) * block[1] * block[2];
  if (count < 1 || count > 1024 || block[2] > 64)
    report("invalid block (%u,%u,%u)", block[0], block[1], block[2]);
  if (most && count > most)
    report("a block of %zu threads; __launch_bounds__ says %u", count, most);
  if (!grid[0] || !grid[1] || !grid[2] || grid[0] > 2147483647u || grid[1] > 65535 ||
      grid[2] > 65535)
    report("invalid grid (%u,%u,%u)", grid[0], grid[1], grid[2]);
  if (shared > 227 * 1024) report("%zu bytes of shared memory", shared);
  return !failed();
}

void report_values(const char* format, va_list values) {
  if (failed()) return;
  char what[700];
  vsnprintf(what, sizeof what, format, values);
  snprintf(message, sizeof message, "%s [block (%u,%u,%u) thread (%u,%u,%u)]", what,
           place.block.x, place.block.y, place.block.z, place.thread.x, place.thread.y,
           place.thread.z);
}
}  // namespace

Place place;

bool failed() { return message[0] != 0; }

void report(const char* format, ...) {
  va_list values;
  va_start(values, format);
  report_values(format, values);
  va_end(values);
}

extern "C" const char* sim_error() { return message; }

void fail(const char* format, ...) {
  va_list values;
  va_start(values, format);
  report_values(format, values);
  va_end(values);
  threads[current].state = kReturned;
  leave(threads[current].fiber, true);
  abort();
}

void block_barrier(Site site) { wait_at(kAtBlockBarrier, site, 0); }

void warp_barrier(unsigned mask, Site site) {
  if (!(mask >> lane() & 1))
    fail("lane %u is not in mask %#x at %s:%d", lane(), mask, site.file, site.line);
  wait_at(kAtWarpBarrier, site, mask);
}

unsigned lane() { return unsigned(current % kWarp); }

uint64_t exchange(uint64_t value, unsigned mask, int from, Site site) {
  const int first = current / kWarp * kWarp;
  threads[current].sent = value;
  warp_barrier(mask, site);
  uint64_t received = value;
  if (from >= 0 && from < kWarp && first + from < thread_count) {
    if (!(mask >> from & 1))
      fail("lane %d, which is read, is not in mask %#x at %s:%d", from, mask, site.file, site.line);
    const Thread& other = threads[first + from];
    received = other.state == kReturned ? ~uint64_t(0) : other.sent;  // a NaN
  }
  warp_barrier(mask, site);
  return received;
}

// Runs blocks first_block .. stop_block - 1 of a launch; returns whether something went wrong.
extern "C" int sim_launch(Kernel entry, void** arguments, const unsigned* grid,
                          const unsigned* block, size_t shared, unsigned order,
                          unsigned most_threads, size_t first_block, size_t stop_block) {
  message[0] = 0;
  place = {};
  current = -1;
  if (!is_launchable(grid, block, shared, most_threads)) return 1;
  begin_launch(grid, block);
  kernel = entry;
  kernel_arguments = arguments;
  Turns turns(thread_count, order);
  const FaultCatcher catcher;
  stop_block = std::min(stop_block, size_t(grid[0]) * grid[1] * grid[2]);
  for (size_t step = first_block; step < stop_block && !failed(); step++) {
    const size_t index = order == kReverse ? stop_block - 1 - (step - first_block) : step;
    place.block = {unsigned(index % grid[0]), unsigned(index / grid[0] % grid[1]),
                   unsigned(index / grid[0] / grid[1])};
    begin_block(step, shared);
    run_block_until_fault(turns);
  }
  acquires(&end_point);
  return failed();
}

}  // namespace sim
