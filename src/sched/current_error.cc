// Converts the exception that is being handled to the one error type.
#include "sched/current_error.h"

#include <exception>
#include <new>
#include <system_error>

namespace trireme::sched {

namespace {

// Created in advance, while memory is available.
const base::Error kOutOfMemory(base::ErrorCode::exhausted, "out of memory");

base::Error described() {
  try {
    throw;
  } catch (const base::Error& e) {
    return e;
  } catch (const std::bad_alloc&) {
    return kOutOfMemory;
  } catch (const std::system_error& e) {  // the system refused a thread or a file
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
