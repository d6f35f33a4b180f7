// PTX instructions as C++: registers are bits, whose type each instruction says anew.
//
// From the PTX ISA, "Instruction Set". Sums and products of floating-point numbers are single
// operations.
#pragma once
#include "cudasim_half.h"

struct f16_bits { uint16_t bits; };
struct bf16_bits { uint16_t bits; };

// What a vector load or store moves at once, from an address of its own size's alignment.
template <class T, int N> struct alignas(sizeof(T) * N) Vector { T v[N]; };

namespace ptx {

template <size_t size> struct Bits;
template <> struct Bits<1> { typedef uint8_t type; };
template <> struct Bits<2> { typedef uint16_t type; };
template <> struct Bits<4> { typedef uint32_t type; };
template <> struct Bits<8> { typedef uint64_t type; };

template <class T, class S> static inline T as(S value) {
  if constexpr (std::is_same_v<T, S>) return value;
  const uint64_t wide = cudasim_bits<typename Bits<sizeof(S)>::type>(value);
  return cudasim_bits<T>(typename Bits<sizeof(T)>::type(wide));
}
template <class D, class T> static inline void set(D& target, T value) { target = as<D>(value); }

static inline void check_alignment(const void* address, size_t bytes) {
  if (reinterpret_cast<uintptr_t>(address) % bytes) sim::fail("misaligned address");
}
template <class T> static inline T load(const void* address) {
  check_alignment(address, sizeof(T));
  return *static_cast<const T*>(address);
}
template <class T> static inline void store(void* address, T value) {
  check_alignment(address, sizeof(T));
  *static_cast<T*>(address) = value;
}

static inline float widened(f16_bits h) { return __half2float({h.bits}); }
static inline float widened(bf16_bits b) { return __bfloat162float({b.bits}); }
static inline f16_bits to_f16(float v) { return {__float2half_rn(v).bits}; }
static inline bf16_bits to_bf16(float v) { return {__float2bfloat16_rn(v).bits}; }

template <class T> static inline T shl(T a, uint32_t by) {
  return by >= sizeof(T) * 8 ? T(0) : T(a << by);
}
template <class T> static inline T shr(T a, uint32_t by) {
  const uint32_t most = sizeof(T) * 8 - 1;
  if (by > most) return std::is_signed_v<T> ? T(a >> most) : T(0);
  return T(a >> by);
}
template <class T> static inline T bfi(T a, T b, uint32_t position, uint32_t length) {
  const uint32_t size = sizeof(T) * 8;
  if (position >= size) return b;
  const T mask = T((length >= size ? ~T(0) : (T(1) << length) - 1) << position);
  return T((b & ~mask) | ((a << position) & mask));
}
enum ShuffleMode { kUp, kDown };
struct Shuffled { uint32_t value; bool is_valid; };
static inline Shuffled shuffle(ShuffleMode mode, uint32_t value, uint32_t b, uint32_t c,
                               uint32_t mask, sim::Site site) {
  const int own = int(sim::lane()), segment = c >> 8 & 31, clamp = c & 31, by = b & 31;
  const int last = (own & segment) | (clamp & ~segment);
  const int from = mode == kUp ? own - by : own + by;
  const bool is_valid = mode == kUp ? from >= last : from <= last;
  return {uint32_t(sim::exchange(value, mask, is_valid ? from : own, site)), is_valid};
}

}  // namespace ptx
