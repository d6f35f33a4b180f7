// A thread of a block as a fiber: a stack of its own on one thread of the operating system.
//
// The sanitizers are told of every switch. ThreadSanitizer takes each fiber for a thread, and a
// switch does not count as synchronization: two accesses that no barrier orders are a race to it.
#pragma once
#include <cstddef>

namespace sim {

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
