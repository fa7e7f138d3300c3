// Errors as the OpenAI API tells them.
#pragma once

#include <string>
#include <string_view>

#include "base/error.h"
#include "http/message.h"

namespace trireme::serve {

/// What is wrong with one member of a request, by the member's name.
class MemberError : public base::Error {
 public:
  MemberError(base::ErrorCode code, std::string member, const std::string& what)
      : base::Error(code, member + ": " + what), member_(std::move(member)) {}
  const std::string& member() const { return member_; }

 private:
  std::string member_;
};

/// {"error": {"message", "type", "param", "code"}} with the status of the error's code; Retry-After with 429
/// and 503, and what a QuotaError says beside it.
http::Response openai_error(const base::Error& error);
/// The same of a status and a code ("model_not_found"; empty: null).
http::Response openai_error(int status, std::string_view message, std::string_view code = {});
/// The body alone, for an event of a stream that has begun.
std::string openai_error_body(const base::Error& error);

}  // namespace trireme::serve
