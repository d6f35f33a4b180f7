#include "internal.h"

#include <cstdarg>
#include <cstdio>

namespace sim {
namespace {
char message[1024];
}

Place place;

void begin_report() { message[0] = 0; }

bool failed() { return message[0] != 0; }

void report(const char* format, ...) {
  if (failed()) return;
  char what[700];
  va_list values;
  va_start(values, format);
  vsnprintf(what, sizeof what, format, values);
  va_end(values);
  snprintf(message, sizeof message, "%s [block (%u,%u,%u) thread (%u,%u,%u)]", what,
           place.block.x, place.block.y, place.block.z, place.thread.x, place.thread.y,
           place.thread.z);
}

extern "C" const char* sim_error() { return message; }

}  // namespace sim
