// Device memory: full of NaN, next to a page that faults; and what becomes of a fault.
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <sys/mman.h>
#include <unistd.h>

#include "internal.h"

namespace sim {
namespace {
// As memory.py has them.
enum Placing { kEndsAtGuard = 0, kBeginsAtGuard = 1, kOnHeap = 2, kSparse = 3 };

struct Allocation {
  unsigned char* first;  // of the guarded pages, the guards left out
  size_t pages_bytes;
  bool on_heap;
};
std::map<unsigned char*, Allocation>& allocations() {
  static auto* all = new std::map<unsigned char*, Allocation>;
  return *all;
}
const size_t kPage = size_t(sysconf(_SC_PAGESIZE));
constexpr size_t kAlignment = 256;

unsigned char* on_heap(size_t bytes) {
  void* memory = nullptr;
  if (posix_memalign(&memory, kAlignment, bytes ? bytes : 1)) return nullptr;
  memset(memory, 0xFF, bytes);
  auto* start = static_cast<unsigned char*>(memory);
  allocations()[start] = {start, 0, true};
  return start;
}

unsigned char* guarded(size_t bytes, int placing, size_t alignment) {
  const size_t inside = std::max<size_t>(1, (bytes + kPage - 1) / kPage) * kPage;
  void* mapped = mmap(nullptr, inside + 2 * kPage, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  unsigned char* first = static_cast<unsigned char*>(mapped) + kPage;
  mprotect(first, inside, PROT_READ | PROT_WRITE);
  if (placing != kSparse) memset(first, 0xFF, inside);
  const size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  unsigned char* start = placing == kBeginsAtGuard ? first : first + inside - rounded;
  allocations()[start] = {first, inside, false};
  return start;
}

// What an address is to the allocation next to it; nullptr where it is far from all of them.
const char* relation(const unsigned char* address, long* offset) {
  for (const auto& [start, block] : allocations()) {
    if (block.on_heap || address < block.first - kPage ||
        address >= block.first + block.pages_bytes + kPage)
      continue;
    *offset = address - start;
    if (address < block.first) return "below a buffer";
    return address < block.first + block.pages_bytes ? "a read-only buffer" : "beyond a buffer";
  }
  return nullptr;
}

void on_fault(int, siginfo_t* info, void*) {
  long offset = 0;
  const char* what = relation(static_cast<unsigned char*>(info->si_addr), &offset);
  if (what) report("illegal address: %s, %ld bytes from its start", what, offset);
  else report("illegal address: far from every buffer");
  siglongjmp(after_fault, 1);
}
}  // namespace

sigjmp_buf after_fault;

extern "C" void* sim_malloc(size_t bytes, int placing, size_t alignment) {
  return placing == kOnHeap ? on_heap(bytes) : guarded(bytes, placing, alignment);
}

extern "C" void sim_free(unsigned char* start) {
  const auto found = allocations().find(start);
  if (found == allocations().end()) return;
  const Allocation block = found->second;
  allocations().erase(found);
  if (block.on_heap) free(start);
  else munmap(block.first - kPage, block.pages_bytes + 2 * kPage);
}

extern "C" void sim_protect(unsigned char* start, int writable) {
  const Allocation& block = allocations().at(start);
  const int how = writable ? PROT_READ | PROT_WRITE : PROT_READ;
  if (!block.on_heap) mprotect(block.first, block.pages_bytes, how);
}

FaultCatcher::FaultCatcher() {
#if !defined(CUDASIM_ASAN) && !defined(CUDASIM_TSAN)
  static unsigned char stack[1 << 16];
  stack_t alternate = {};
  alternate.ss_sp = stack;
  alternate.ss_size = sizeof stack;
  sigaltstack(&alternate, &stack_before_);
  struct sigaction action = {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  sigemptyset(&action.sa_mask);
  sigaction(SIGSEGV, &action, &before_[0]);
  sigaction(SIGBUS, &action, &before_[1]);
#endif
}

FaultCatcher::~FaultCatcher() {
#if !defined(CUDASIM_ASAN) && !defined(CUDASIM_TSAN)
  sigaction(SIGSEGV, &before_[0], nullptr);
  sigaction(SIGBUS, &before_[1], nullptr);
  sigaltstack(&stack_before_, nullptr);
#endif
}

}  // namespace sim
