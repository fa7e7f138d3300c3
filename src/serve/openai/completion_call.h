// One request of the OpenAI API for texts: its answers, gathered or streamed.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "http/reply.h"
#include "serve/models/text_model.h"
#include "serve/openai/completion_request.h"
#include "serve/openai/stream_keeper.h"
#include "serve/openai/token_chances.h"
#include "serve/openai/tool_calls.h"

namespace trireme::serve {

/// Answers are told by the model's thread, errors of a prompt that could not be queued by the connection's.
class CompletionCall final : public KeptStream, public std::enable_shared_from_this<CompletionCall> {
 public:
  /// `id` without its kind; `created`: seconds since 1970. The model outlives the call.
  struct Origin {
    std::string id;
    int64_t created = 0;
    bool tells_known = true;            ///< cached tokens: their number depends on the time
    std::shared_ptr<const void> keeps;  ///< what must live as long as answers come
    ReplyHeaders headers = {};          ///< of the reply, beside its own
  };
  CompletionCall(CompletionRequest request, http::Reply reply, const data::Tokenizer& tokenizer,
                 Origin origin);

  /// Queues every answer with the prompts as tokens. Errors become the reply.
  void start(TextModel& model, const std::vector<std::vector<int64_t>>& prompts);
  bool keep_alive(int64_t now_ns, int64_t interval_ns) override;

 private:
  struct Answer {
    std::string text;
    std::vector<AnswerToken> tokens;
    double log_probability = 0;
    size_t characters = 0;                       ///< of the tokens so far, where their places are wanted
    std::unique_ptr<data::TextStream> measured;  ///< the answer's text, for that
    bool has_begun = false;                      ///< its first chunk was sent
    bool is_over = false;
    bool is_echoed = false;  ///< tokens of the prompt were given
    ToolText tools;          ///< of a stream with tools, what may be calls
    TextEnd end;
  };
  class Reader;

  size_t prompt_of(size_t answer) const { return answer / static_cast<size_t>(request_.best_of); }
  bool is_gone() const;
  void take(size_t answer, const TextPiece& piece);
  std::vector<AnswerToken> tokens_of(size_t answer, const TextPiece& piece);
  void end(size_t answer, const TextEnd& end);
  void fail(const base::Error& error);

  bool open();
  void send_event(std::string event);
  /// What a chunk says beside the answer's index.
  struct Chunk {
    std::string_view text = {};
    std::span<const AnswerToken> tokens = {};      ///< none: no log probability
    const std::vector<ToolCall>* calls = nullptr;  ///< null: none
    std::string_view finish = {};                  ///< empty: the answer goes on
  };
  void send_chunk(size_t answer, const Chunk& chunk);
  void end_chunks(size_t answer, std::string_view finish);
  std::string_view append_message(std::string& out, size_t choice, const std::string& text,
                                  std::string_view finish) const;
  void append_calls(std::string& out, size_t choice, const std::vector<ToolCall>& calls, bool is_delta) const;
  std::vector<ToolCall> kept(std::vector<ToolCall> calls) const;
  std::string_view finish_with(const std::vector<ToolCall>& calls, std::string_view finish) const;
  void send_whole();
  void append_chunk_text(std::string& out, size_t answer, std::string_view text, bool is_first,
                         const Chunk& chunk) const;
  void append_log_probabilities(std::string& out, std::span<const AnswerToken> tokens) const;
  std::string head(bool is_chunk) const;
  std::string usage() const;
  std::vector<size_t> chosen() const;

  const CompletionRequest request_;
  const data::Tokenizer& tokenizer_;
  const Origin origin_;
  const std::string chunk_head_;  ///< of every event with answers, up to the first of them
  mutable std::mutex mutex_;      // of what follows
  http::Reply reply_;
  http::Stream stream_;
  bool is_open_ = false;              ///< the stream has begun
  int64_t sent_ns_;                   ///< when the last event was, or the beginning
  std::atomic<bool> is_done_{false};  ///< nothing more is sent
  std::vector<std::string> echoes_;   ///< by prompt, where they are wanted
  std::vector<int64_t> begins_;       ///< likewise the first tokens of prompts
  std::vector<Answer> answers_;
  size_t left_ = 0;
};

}  // namespace trireme::serve
