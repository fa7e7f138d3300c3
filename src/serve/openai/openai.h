// The OpenAI API: which path and method asks which model for what.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>

#include "http/message.h"
#include "http/reply.h"
#include "serve/core/kserve_core.h"
#include "serve/models/preparing_threads.h"
#include "serve/models/text_model.h"
#include "serve/openai/completion_request.h"
#include "serve/openai/embedding_call.h"
#include "serve/openai/kept_responses.h"
#include "serve/openai/stream_keeper.h"

namespace trireme::serve {

/// Answers /v1/models, /v1/completions, /v1/chat/completions, /v1/responses and those it keeps,
/// /v1/embeddings, /v1/rerank, /v1/score, /tokenize, /detokenize, /health, /ping and /version. Any server
/// thread; nothing here waits for a model.
class OpenAiApi {
 public:
  /// A request of the server's own, in the name of somebody who was let in before: what a client would say in
  /// headers, and what would else differ from one time to the next. Its usage says of no token that it was
  /// known.
  struct Own {
    std::string id;         ///< of the answer, without its kind
    int64_t seed = 0;       ///< where the request has none
    int64_t created_s = 0;  ///< of the answer, since 1970
    std::string tenant;
    /// The models that it may ask, which whoever it is for was allowed to use; null: all.
    std::shared_ptr<const std::set<std::string>> models = nullptr;
    bool is_background = false;  ///< it runs in what others leave, and waits as long as it takes

    bool may_ask(const std::string& model) const { return models == nullptr || models->contains(model); }
  };

  /// `keep_alive_ns`: how long a stream may be silent before it is sent a comment; 0: for ever.
  OpenAiApi(KserveCore& core, int64_t keep_alive_ns, const KeptResponses::Limits& kept);

  /// True for the paths above.
  static bool takes(std::string_view path);
  /// Errors become replies in the form of this API.
  void handle(http::Request&& request, http::Reply reply) const;
  /// The same for a request of the server's own (http/local_request.h), whose answer is not streamed.
  void handle_own(http::Request&& request, http::Reply reply, Own own) const;
  /// True for those of the paths above that models answer.
  static bool makes_answers(std::string_view path);

 private:
  /// A model that continues texts, kept while it is used.
  struct Found {
    std::shared_ptr<ServedModel> served;
    TextModel& texts;
    std::shared_ptr<const engine::LoadedAdapter> adapter;  ///< null: the model alone
  };
  void run(const http::Request& request, http::Reply reply) const;
  http::Response answer(const http::Request& request) const;
  Found find(const std::string& name, const http::Request& request) const;
  void complete(const http::Request& request, http::Reply reply) const;
  void respond(const http::Request& request, http::Reply& reply) const;
  http::Response kept_response(const http::Request& request) const;
  struct Ready;
  Ready ready(CompletionRequest& asked, const http::Request& request) const;
  void embed(const http::Request& request, http::Reply reply) const;
  void embed_texts(const http::Request& request, EmbeddingRequest asked,
                   const std::shared_ptr<http::Reply>& reply,
                   std::function<std::string(const Embedded&)> answer) const;
  std::vector<std::vector<int64_t>> prompts_of(const CompletionRequest& asked, TextModel& model) const;
  base::Json models() const;
  base::Json model_of(const ServedModel& model, const std::string& adapter = {}) const;
  base::Json tokenize(const http::Request& request) const;
  base::Json detokenize(const http::Request& request) const;
  int64_t next_seed() const;
  std::string tenant_of(const http::Request& request) const;
  std::shared_ptr<TokenCharge> charge(const http::Request& request, int64_t prompt_tokens,
                                      int64_t answer_tokens, ReplyHeaders& headers) const;
  std::string id_of(const http::Request& request) const;

  KserveCore& core_;
  const uint64_t first_number_;
  mutable std::atomic<uint64_t> numbers_{0};
  const std::shared_ptr<KeptResponses> kept_;  ///< with calls under way, which end after this
  mutable StreamKeeper keeper_;
  // Last: their threads use all.
  mutable PreparingThreads long_requests_;    ///< whose texts take long to tokenize
  mutable PreparingThreads formed_requests_;  ///< whose answers have a form, which takes long to compile
};

}  // namespace trireme::serve
