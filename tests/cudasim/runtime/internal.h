// What the parts of the runtime share.
#pragma once
#include <csetjmp>
#include <csignal>
#include <cstddef>

#include "cudasim_runtime.h"

namespace sim {

// The first thing that went wrong in a launch; empty where nothing did.
bool failed();
void report(const char* format, ...) __attribute__((format(printf, 1, 2)));

// Shared memory of the block that is about to run.
void begin_block_memory(size_t whole_bytes);

// Where a fault of a kernel jumps to.
extern sigjmp_buf after_fault;

// Takes the signals of faults for as long as it lives. The sanitizers handle them themselves.
class FaultCatcher {
 public:
  FaultCatcher();
  ~FaultCatcher();

 private:
  stack_t stack_before_ = {};
  struct sigaction before_[2] = {};
};

// A thread of a block as a fiber: a stack of its own on one thread of the operating system.
//
// The sanitizers are told of every switch. ThreadSanitizer takes each fiber for a thread, and a
// switch does not count as synchronization: two accesses that no barrier orders are a race to it.

// A stack and ThreadSanitizer's idea of a thread; serves threads of successive blocks.
struct Carrier {
  unsigned char* stack;
  void* tsan;
};
Carrier make_carrier();

struct Fiber {
  void* stack_pointer;
  Carrier carrier;
  void* fake_stack;
};
void prepare(Fiber& fiber, const Carrier& carrier, void (*entry)());
void begin_fibers();           // before any of them is entered, on the thread that will
void enter(Fiber& fiber);      // from the scheduler
void entered(Fiber& fiber);    // first thing on a fiber
void leave(Fiber& fiber, bool for_good);

// Points that order memory accesses, for ThreadSanitizer.
void releases(void* point);
void acquires(void* point);

}  // namespace sim
