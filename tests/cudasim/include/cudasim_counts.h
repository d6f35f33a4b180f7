// Counts of what a launch does, for a model of its time.
#pragma once
#include <cstddef>

namespace sim {

enum Access { kGlobalLoad, kGlobalStore, kShared, kLocal, kAccesses };

void count_instruction();
// The accesses of a warp's lanes by one instruction, the same time over, are one request.
void count_access(int instruction, Access kind, const void* address, size_t bytes);

}  // namespace sim
