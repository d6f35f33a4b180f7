#include "internal.h"

#include <cstdint>
#include <sys/mman.h>

#if defined(CUDASIM_ASAN)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(CUDASIM_TSAN)
extern "C" {  // of <sanitizer/tsan_interface.h>, which some distributions leave out
void* __tsan_get_current_fiber(void);
void* __tsan_create_fiber(unsigned flags);
void __tsan_switch_to_fiber(void* fiber, unsigned flags);
void __tsan_acquire(void* point);
void __tsan_release(void* point);
}
#endif

#if !defined(__x86_64__)
#error "the switch of stacks is written for x86-64"
#endif

extern "C" void sim_switch(void** save, void* load);
// Saves what a callee must keep, takes the other stack, restores from there.
asm(R"(
.text
.globl sim_switch
.type sim_switch, @function
sim_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size sim_switch, .-sim_switch
)");

namespace sim {
namespace {
constexpr size_t kStack = 64 * 1024;
constexpr int kSavedRegisters = 6;
[[maybe_unused]] constexpr unsigned kUnsynchronized = 1;
void* scheduler_stack_pointer;
[[maybe_unused]] void* scheduler_tsan;
[[maybe_unused]] void* scheduler_fake_stack;
[[maybe_unused]] const void* scheduler_stack;
[[maybe_unused]] size_t scheduler_stack_size;
}  // namespace

Carrier make_carrier() {
  void* stack = mmap(nullptr, kStack, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  Carrier made = {static_cast<unsigned char*>(stack), nullptr};
#if defined(CUDASIM_TSAN)
  made.tsan = __tsan_create_fiber(0);
#endif
  return made;
}

void prepare(Fiber& fiber, const Carrier& carrier, void (*entry)()) {
  void** top = reinterpret_cast<void**>(carrier.stack + kStack);
  *--top = nullptr;  // a return address for entry(), which does not return
  *--top = reinterpret_cast<void*>(entry);
  for (int i = 0; i < kSavedRegisters; i++) *--top = nullptr;
  fiber = {top, carrier, nullptr};
}

void begin_fibers() {
#if defined(CUDASIM_TSAN)
  scheduler_tsan = __tsan_get_current_fiber();
#endif
}

void enter(Fiber& fiber) {
#if defined(CUDASIM_ASAN)
  __sanitizer_start_switch_fiber(&scheduler_fake_stack, fiber.carrier.stack, kStack);
#endif
#if defined(CUDASIM_TSAN)
  __tsan_switch_to_fiber(fiber.carrier.tsan, kUnsynchronized);
#endif
  sim_switch(&scheduler_stack_pointer, fiber.stack_pointer);
#if defined(CUDASIM_ASAN)
  __sanitizer_finish_switch_fiber(scheduler_fake_stack, nullptr, nullptr);
#endif
}

void entered(Fiber& fiber) {
  (void)fiber;
#if defined(CUDASIM_ASAN)
  __sanitizer_finish_switch_fiber(fiber.fake_stack, &scheduler_stack, &scheduler_stack_size);
#endif
}

void leave(Fiber& fiber, bool for_good) {
  (void)for_good;
#if defined(CUDASIM_ASAN)
  __sanitizer_start_switch_fiber(for_good ? nullptr : &fiber.fake_stack, scheduler_stack,
                                 scheduler_stack_size);
#endif
#if defined(CUDASIM_TSAN)
  __tsan_switch_to_fiber(scheduler_tsan, kUnsynchronized);
#endif
  sim_switch(&fiber.stack_pointer, scheduler_stack_pointer);
  entered(fiber);
}

void releases(void* point) {
  (void)point;
#if defined(CUDASIM_TSAN)
  __tsan_release(point);
#endif
}

void acquires(void* point) {
  (void)point;
#if defined(CUDASIM_TSAN)
  __tsan_acquire(point);
#endif
}

}  // namespace sim
