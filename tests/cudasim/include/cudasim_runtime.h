// What kernels ask of the runtime, and how a kernel becomes a function that the runtime can launch.
#pragma once
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

struct uint3 { unsigned x, y, z; };
struct dim3 { unsigned x = 1, y = 1, z = 1; };

namespace sim {

// Where the running thread is.
struct Place {
  uint3 thread, block;
  dim3 block_size, grid_size;
};
extern Place place;

// Where in the source threads wait for each other.
struct Site {
  const char* file;
  int line;
};

[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

void block_barrier(Site site);
void warp_barrier(unsigned mask, Site site);
inline unsigned mask_or_all(unsigned mask = 0xffffffffu) { return mask; }
unsigned lane();
// Lane `from` of the same warp's value; the own one where there is no such lane.
uint64_t exchange(uint64_t value, unsigned mask, int from, Site site);

// Shared memory is found by where it is declared, anew for each block; or as a whole, where a launch
// says how many bytes a kernel has.
struct SharedSite {
  unsigned long block;
  void* memory;
};
void* shared_memory(SharedSite* site, size_t bytes);
extern unsigned char* whole_shared;

typedef void (*Kernel)(void** arguments);

template <class F> struct Signature;
template <class... A> struct Signature<void (*)(A...)> {
  static constexpr int count = sizeof...(A);
  template <void (*F)(A...)> static void call(void** arguments) {
    call_with<F>(arguments, std::index_sequence_for<A...>());
  }
  template <void (*F)(A...), size_t... I>
  static void call_with(void** arguments, std::index_sequence<I...>) {
    F(*reinterpret_cast<std::remove_reference_t<A>*>(arguments[I])...);
  }
  static void sizes(int* out) { ((*out++ = int(sizeof(A))), ...); }
};

}  // namespace sim

#define CUDASIM_EXPORT(alias, ...)                                                 \
  extern "C" void sim_kernel_##alias(void** arguments) {                           \
    ::sim::Signature<decltype(&__VA_ARGS__)>::template call<&__VA_ARGS__>(arguments); \
  }                                                                                \
  extern "C" int sim_sizes_##alias(int* out) {                                     \
    typedef ::sim::Signature<decltype(&__VA_ARGS__)> Own;                          \
    if (out) Own::sizes(out);                                                      \
    return Own::count;                                                             \
  }
