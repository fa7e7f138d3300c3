// Requests of the responses API: the conversation that a response goes on with, and what is told again with
// it.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/text/json.h"
#include "serve/openai/completion_request.h"

namespace trireme::serve {

struct ResponsesRequest {
  CompletionRequest chat;  ///< the same question in the words of chat completions
  base::Json settings;     ///< members of the request that a response repeats, with their defaults
  bool lists_chances = false;
};

/// Parses a body of POST /v1/responses: text in, text and calls of functions out, nothing kept. Throws
/// MemberError, invalid_argument and unsupported as chat_request() does, by the members' names here.
ResponsesRequest responses_request(std::string_view body, int64_t seed);

}  // namespace trireme::serve
