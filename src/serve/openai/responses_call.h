// One request of the responses API: its answer as items, gathered or as events.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "http/reply.h"
#include "serve/openai/completion_call.h"
#include "serve/openai/responses_request.h"
#include "serve/openai/stream_keeper.h"

namespace trireme::serve {

/// The answer's text is one message, each call of a function an item of its own. Told by the model's thread,
/// errors of what could not be queued by the connection's.
class ResponsesCall final : public TextReader,
                            public KeptStream,
                            public std::enable_shared_from_this<ResponsesCall> {
 public:
  /// Who is given the response, as JSON, once it is complete; null: nobody.
  using Keep = std::function<void(const std::string& id, std::string response)>;
  ResponsesCall(ResponsesRequest request, http::Reply reply, const data::Tokenizer& tokenizer,
                CompletionCall::Origin origin, Keep keep = nullptr);

  /// Queues the prompt. Errors become the reply.
  void start(TextModel& model, std::vector<int64_t> prompt);

  void on_piece(const TextPiece& piece) override;
  void on_end(const TextEnd& end) override;
  void on_error(const base::Error& error) override;
  bool is_gone() const override;
  bool keep_alive(int64_t now_ns, int64_t interval_ns) override;

 private:
  std::string id(std::string_view kind, size_t number) const;
  std::string response(std::string_view status) const;
  std::string message(std::string_view status) const;
  std::string part(std::string_view text, const std::vector<AnswerToken>& tokens) const;
  std::string call_item(size_t i, bool is_done) const;
  std::string place(size_t output) const;
  std::string usage() const;
  void open();
  void send(std::string_view type, const std::string& members);
  void send_response(std::string_view type, std::string_view status);
  void begin_message();
  void send_text(std::string_view text, const std::vector<AnswerToken>& tokens);
  void end_message(std::string_view status);
  void send_call(size_t i);

  const ResponsesRequest request_;
  const data::Tokenizer& tokenizer_;
  const CompletionCall::Origin origin_;
  const Keep keep_;
  mutable std::mutex mutex_;  // of what follows
  http::Reply reply_;
  http::Stream stream_;
  bool is_open_ = false, is_done_ = false, has_message_ = false;
  int64_t sent_ns_ = 0;
  int64_t events_ = 0;
  std::string text_;                 ///< of the message
  std::vector<AnswerToken> tokens_;  ///< where their probabilities are wanted
  std::vector<AnswerToken> held_;    ///< of text that is held back
  ToolText tool_text_;
  std::vector<ToolCall> calls_;
  base::Json error_;
  TextEnd end_;
};

}  // namespace trireme::serve
