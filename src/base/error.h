// The one exception type of the program: a code, a message, and the nouns each layer added on the way up.
#pragma once

#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace trireme::base {

/// What went wrong, as the edges report it (HTTP 400/404/501/429/503/500; CLI exit 2/3/4/5/6/70).
enum class ErrorCode { invalid_argument, not_found, unsupported, exhausted, unavailable, internal };

std::string_view to_string(ErrorCode code);

/// Thrown anywhere, caught only at the edges (protocol handler, scheduler step, rank main, CLI main).
class Error : public std::exception {
 public:
  Error(ErrorCode code, std::string message);
  /// Copies need no memory: an error can be handed on when there is none.
  Error(const Error&) noexcept = default;
  Error& operator=(const Error&) noexcept = default;

  ErrorCode code() const { return code_; }
  const std::string& message() const { return *message_; }

  /// Prepends "noun: " to the message; used while the error travels up: `throw e.with("model 'resnet'")`.
  Error with(std::string_view noun) const;

  const char* what() const noexcept override { return message_->c_str(); }

 private:
  ErrorCode code_;
  std::shared_ptr<const std::string> message_;
};

/// Joins the arguments as `operator<<` prints them; the message builder of every throw.
template <class... Args>
std::string concat(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return std::move(out).str();
}

template <class... Args>
[[noreturn]] void fail(ErrorCode code, const Args&... args) {
  throw Error(code, concat(args...));
}

template <class... Args>
[[noreturn]] void fail_invalid(const Args&... args) {
  throw Error(ErrorCode::invalid_argument, concat(args...));
}

template <class... Args>
[[noreturn]] void fail_unsupported(const Args&... args) {
  throw Error(ErrorCode::unsupported, concat(args...));
}

/// Throws invalid_argument with the joined message unless `condition` holds. For facts about the user's
/// input.
template <class... Args>
void require(bool condition, const Args&... args) {
  if (!condition) [[unlikely]]
    throw Error(ErrorCode::invalid_argument, concat(args...));
}

/// Throws internal unless `condition` holds. For facts about our own code.
template <class... Args>
void check(bool condition, const Args&... args) {
  if (!condition) [[unlikely]]
    throw Error(ErrorCode::internal, concat(args...));
}

}  // namespace trireme::base
