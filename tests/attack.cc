// Measures the heap of this process as its allocator counts it.
#include "tests/attack.h"

#include <malloc.h>

namespace trireme::tests {

double heap_bytes() {
  const struct mallinfo2 now = mallinfo2();
  return static_cast<double>(now.uordblks + now.hblkhd);
}

}  // namespace trireme::tests
