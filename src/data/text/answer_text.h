// The text of an answer as its tokens come: whole characters, up to the first stop text.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "data/text/stop_text.h"
#include "data/text/tokenizer.h"

namespace trireme::data {

class AnswerText {
 public:
  /// `stops`: strings that end the answer; no part of them is ever shown. One counts only if it ends behind
  /// the first `least_tokens` tokens.
  AnswerText(const Tokenizer& tokenizer, std::vector<std::string> stops, int64_t least_tokens = 0)
      : stream_(tokenizer.stream()), stop_(std::move(stops)), least_tokens_(least_tokens) {}

  /// What the token lets be shown; empty while a character is open or a stop text may have begun.
  std::string push(int64_t token) {
    ++tokens_;
    return show(stop_.push(stream_->push(token), may_end()));
  }
  /// What was held back, once no more tokens come; nothing behind a stop text.
  std::string finish() {
    if (stop_.found()) return {};
    std::string rest = stop_.push(stream_->finish(), may_end());
    return show(rest + stop_.finish());
  }
  /// A stop text has come: the answer is over.
  bool is_stopped() const { return stop_.found(); }
  /// All that was shown.
  const std::string& text() const { return text_; }

 private:
  bool may_end() const { return tokens_ > least_tokens_; }
  std::string show(std::string piece) {
    text_ += piece;
    return piece;
  }

  std::unique_ptr<TextStream> stream_;
  StopText stop_;
  int64_t least_tokens_, tokens_ = 0;
  std::string text_;
};

}  // namespace trireme::data
