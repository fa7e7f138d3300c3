// The handlers that the compiler's alignment checks call, in builds without a sanitizer's runtime.
#include "backend/cuda/device/host_alignment.h"

#include <utility>

#include "base/error.h"

namespace trireme::cuda {
namespace {

/// The compiler's record of a checked access; GCC and clang share its layout.
struct CheckedType {
  uint16_t kind, info;
  char name[1];  // zero-terminated
};
struct CheckedAccess {
  const char* file;
  uint32_t line, column;
  const CheckedType* type;
  unsigned char log_alignment, kind;
};

struct Misaligned {
  const CheckedAccess* access = nullptr;
  uintptr_t address = 0;
};
thread_local Misaligned first_misaligned;

}  // namespace

std::string take_misaligned_access() {
  const Misaligned found = std::exchange(first_misaligned, {});
  if (found.access == nullptr) return {};
  const CheckedAccess& a = *found.access;
  return base::concat("misaligned address: ", a.file, ":", a.line, " reaches ", a.type->name,
                      " at an address ", found.address % (uintptr_t{1} << a.log_alignment),
                      " bytes past a multiple of ", 1 << a.log_alignment);
}

#if TRIREME_CHECKS_ALIGNMENT
bool reports_misaligned_access() { return true; }

/// Called for each access that fails its check; the compiler prescribes the name.
extern "C" void __ubsan_handle_type_mismatch_v1(void* access, void* address) {
  if (first_misaligned.access == nullptr)
    first_misaligned = {static_cast<const CheckedAccess*>(access), reinterpret_cast<uintptr_t>(address)};
}
#else
bool reports_misaligned_access() { return false; }
#endif

}  // namespace trireme::cuda
