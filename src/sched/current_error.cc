// Whatever is being thrown, as the one error type.
#include "sched/current_error.h"

#include <exception>
#include <new>
#include <system_error>

namespace trireme::sched {

namespace {

// Made while there is memory.
const base::Error kOutOfMemory(base::ErrorCode::exhausted, "out of memory");

base::Error described() {
  try {
    throw;
  } catch (const base::Error& e) {
    return e;
  } catch (const std::bad_alloc&) {
    return kOutOfMemory;
  } catch (const std::system_error& e) {  // a thread or a file that the system does not give
    return {base::ErrorCode::exhausted, e.what()};
  } catch (const std::exception& e) {
    return {base::ErrorCode::internal, e.what()};
  }
}

}  // namespace

base::Error current_error() noexcept {
  try {
    return described();
  } catch (const std::bad_alloc&) {
    return kOutOfMemory;
  }
}

}  // namespace trireme::sched
