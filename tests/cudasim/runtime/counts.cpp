#include "cudasim_counts.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <tuple>
#include <unordered_set>
#include <vector>

#include "cudasim_runtime.h"

namespace sim {
namespace {
constexpr uintptr_t kSector = 32;

struct Totals {
  uint64_t instructions;
  uint64_t requests[kAccesses];
  uint64_t sectors[kAccesses];
} totals;
std::unordered_set<uintptr_t> touched[2];  // sectors of global memory, loaded and stored

// (instruction, warp, how many times before): sectors that its lanes touch.
struct Request {
  Access kind;
  std::vector<uintptr_t> sectors;
};
std::map<std::tuple<int, unsigned, unsigned>, Request> requests;
std::map<std::pair<int, unsigned>, unsigned> times;  // by instruction and thread
uint3 block;

void finish_block() {
  for (auto& [key, request] : requests) {
    auto& sectors = request.sectors;
    std::sort(sectors.begin(), sectors.end());
    sectors.erase(std::unique(sectors.begin(), sectors.end()), sectors.end());
    totals.requests[request.kind]++;
    totals.sectors[request.kind] += sectors.size();
  }
  requests.clear();
  times.clear();
}

bool same(uint3 a, uint3 b) { return a.x == b.x && a.y == b.y && a.z == b.z; }
}  // namespace

void count_instruction() { totals.instructions++; }

void count_access(int instruction, Access kind, const void* address, size_t bytes) {
  if (!same(block, place.block)) finish_block();
  block = place.block;
  const uint3 at = place.thread;
  const dim3 size = place.block_size;
  const unsigned thread = (at.z * size.y + at.y) * size.x + at.x;
  const unsigned time = times[{instruction, thread}]++;
  Request& request = requests[{instruction, thread / 32, time}];
  request.kind = kind;
  const auto first = reinterpret_cast<uintptr_t>(address) / kSector;
  const auto last = (reinterpret_cast<uintptr_t>(address) + bytes - 1) / kSector;
  for (uintptr_t sector = first; sector <= last; sector++) {
    request.sectors.push_back(sector);
    if (kind == kGlobalLoad || kind == kGlobalStore) touched[kind].insert(sector);
  }
}

extern "C" void sim_reset_counts() {
  finish_block();
  totals = {};
  for (auto& sectors : touched) sectors.clear();
}

// Instructions; requests and sectors of each kind; distinct sectors loaded and stored.
extern "C" void sim_counts(uint64_t* out) {
  finish_block();
  *out++ = totals.instructions;
  for (uint64_t count : totals.requests) *out++ = count;
  for (uint64_t count : totals.sectors) *out++ = count;
  for (const auto& sectors : touched) *out++ = sectors.size();
}

}  // namespace sim
