// The OpenAI API: which path and method asks which model for what.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "http/message.h"
#include "http/reply.h"
#include "serve/core/kserve_core.h"
#include "serve/models/preparing_threads.h"
#include "serve/models/text_model.h"
#include "serve/openai/completion_request.h"

namespace trireme::serve {

/// Answers /v1/models, /v1/completions, /v1/chat/completions, /v1/embeddings, /tokenize, /detokenize,
/// /health, /ping and /version. Any server thread; nothing here waits for a model.
class OpenAiApi {
 public:
  explicit OpenAiApi(KserveCore& core);

  /// True for the paths above.
  static bool takes(std::string_view path);
  /// Errors become replies in the form of this API.
  void handle(http::Request&& request, http::Reply reply) const;

 private:
  /// A model that continues texts, kept while it is used.
  struct Found {
    std::shared_ptr<ServedModel> served;
    TextModel& texts;
  };
  void run(const http::Request& request, http::Reply reply) const;
  http::Response answer(const http::Request& request) const;
  Found find(const std::string& name, const http::Request& request) const;
  void complete(const http::Request& request, http::Reply reply) const;
  void embed(const http::Request& request, http::Reply reply) const;
  std::vector<std::vector<int64_t>> prompts_of(const CompletionRequest& asked, TextModel& model) const;
  base::Json models() const;
  base::Json model_of(const ServedModel& model) const;
  base::Json tokenize(const http::Request& request) const;
  base::Json detokenize(const http::Request& request) const;
  int64_t next_seed() const;

  KserveCore& core_;
  const uint64_t first_number_;
  mutable std::atomic<uint64_t> numbers_{0};
  mutable PreparingThreads long_requests_;  ///< whose texts take long to tokenize; last: its threads use all
};

}  // namespace trireme::serve
