// Errors in the form of the OpenAI API.
#include "serve/openai/openai_error.h"

#include "base/text/json.h"
#include "base/text/shortened.h"
#include "serve/access/quota.h"

namespace trireme::serve {
namespace {

using base::Json;

std::string_view error_type(int status) {
  if (status == 401) return "authentication_error";
  if (status == 403) return "permission_error";
  if (status == 404) return "not_found_error";
  if (status == 429) return "rate_limit_error";
  if (status == 503) return "service_unavailable_error";
  return status < 500 ? "invalid_request_error" : "server_error";
}

std::string body_of(int status, std::string_view message, const Json& member, std::string_view code) {
  const Json error = Json::object({{"message", base::shortened(std::string(message))},
                                   {"type", error_type(status)},
                                   {"param", member},
                                   {"code", code.empty() ? Json() : Json(code)}});
  return Json::object({{"error", error}}).dump();
}

/// Unsupported requests are errors of the client, like invalid ones.
int status_of_ours(const base::Error& error) {
  return error.code() == base::ErrorCode::unsupported ? 400 : http::status_of(error.code());
}

Json erring_member(const base::Error& error) {
  const auto* of_member = dynamic_cast<const MemberError*>(&error);
  return of_member == nullptr ? Json() : Json(of_member->member());
}

}  // namespace

std::string openai_error_body(const base::Error& error) {
  return body_of(status_of_ours(error), error.message(), erring_member(error), {});
}

http::Response openai_error(const base::Error& error) {
  if (const auto* quota = dynamic_cast<const QuotaError*>(&error)) {
    http::Response refusal = openai_error(429, error.message(), "rate_limit_exceeded");
    refusal.headers.insert(refusal.headers.end(), quota->headers().begin(), quota->headers().end());
    return refusal;
  }
  http::Response response = http::json_response(status_of_ours(error), openai_error_body(error));
  if (response.status == 429 || response.status == 503) response.headers.emplace_back("Retry-After", "1");
  return response;
}

http::Response openai_error(int status, std::string_view message, std::string_view code) {
  return http::json_response(status, body_of(status, message, Json(), code));
}

}  // namespace trireme::serve
