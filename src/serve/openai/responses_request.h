// Requests of the responses API: the conversation that a response goes on with, and what is told again with
// it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/text/json.h"
#include "serve/openai/completion_request.h"

namespace trireme::serve {

struct ResponsesRequest {
  CompletionRequest chat;  ///< the same question in the words of chat completions
  base::Json settings;     ///< members of the request that a response repeats, with their defaults
  bool lists_chances = false;
  bool is_kept = false;  ///< so that another may go on from it
  base::Json items;      ///< of a response that is kept: all that it answers, an array
};

/// The items of the conversation that an earlier response ended; throws where there is none.
using FindConversation = std::function<base::Json(const std::string& id)>;

/// Parses a body of POST /v1/responses: text in, text and calls of functions out. `find`: null where no
/// response is kept. Throws MemberError, invalid_argument and unsupported as chat_request() does, by the
/// members' names here, and what `find` throws.
ResponsesRequest responses_request(std::string_view body, int64_t seed,
                                   const FindConversation& find = nullptr);

}  // namespace trireme::serve
