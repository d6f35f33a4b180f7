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

}  // namespace sim
