// Shared memory: an arena that each block finds empty, full of NaN, with gaps between the arrays.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <sys/mman.h>

#include "internal.h"

#if defined(CUDASIM_ASAN)
#include <sanitizer/asan_interface.h>
#endif

namespace sim {
namespace {
constexpr size_t kArena = 1 << 20;
constexpr size_t kGap = 64;
constexpr size_t kAlignment = 256;
unsigned char* arena;
size_t used;
unsigned long block_number;

void poison(void* memory, size_t bytes) {
  // Not memset(), which ThreadSanitizer would take for a write of this thread.
  asm volatile("rep stosb" : "+D"(memory), "+c"(bytes) : "a"(0xFF) : "memory");
}

unsigned char* allocate(size_t bytes) {
  const size_t offset = (used + kGap + kAlignment - 1) / kAlignment * kAlignment;
  if (offset + bytes + kGap > kArena) {
    fprintf(stderr, "cudasim: a block has more than %zu bytes of shared memory\n", kArena);
    abort();
  }
  used = offset + bytes;
#if defined(CUDASIM_ASAN)
  __asan_unpoison_memory_region(arena + offset, bytes);
#endif
  poison(arena + offset, bytes);
  return arena + offset;
}

void map_arena(void* where, int flags) {
  void* mapped = mmap(where, kArena, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags, -1, 0);
  if (mapped == MAP_FAILED) abort();
  arena = static_cast<unsigned char*>(mapped);
}
}  // namespace

unsigned char* whole_shared;

void begin_block_memory(size_t whole_bytes) {
  block_number++;
#if defined(CUDASIM_TSAN)
  const bool forgets = used != 0;  // mapped anew, ThreadSanitizer forgets the block before
#else
  const bool forgets = false;
#endif
  if (!arena) map_arena(nullptr, 0);
  else if (forgets) map_arena(arena, MAP_FIXED);
  used = 0;
#if defined(CUDASIM_ASAN)
  __asan_poison_memory_region(arena, kArena);
#endif
  whole_shared = whole_bytes ? allocate(whole_bytes) : nullptr;
}

void* shared_memory(SharedSite* site, size_t bytes) {
  if (site->block != block_number) *site = {block_number, allocate(bytes)};
  return site->memory;
}

}  // namespace sim
