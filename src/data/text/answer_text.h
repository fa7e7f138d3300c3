// The text of an answer as its tokens come: whole characters, up to the first stop text.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/text/stop_text.h"
#include "data/text/tokenizer.h"

namespace trireme::data {

class AnswerText {
 public:
  /// `stops`: strings that end the answer; no part of them is ever shown.
  AnswerText(const Tokenizer& tokenizer, std::vector<std::string> stops)
      : stream_(tokenizer.stream()), stop_(std::move(stops)) {}

  /// What the token lets be shown; empty while a character is open or a stop text may have begun.
  std::string push(int64_t token) { return show(stop_.push(stream_->push(token))); }
  /// What was held back, once no more tokens come; nothing behind a stop text.
  std::string finish() {
    if (stop_.found()) return {};
    std::string rest = stop_.push(stream_->finish());
    return show(rest + stop_.finish());
  }
  /// A stop text has come: the answer is over.
  bool is_stopped() const { return stop_.found(); }
  /// All that was shown.
  const std::string& text() const { return text_; }

 private:
  std::string show(std::string piece) {
    text_ += piece;
    return piece;
  }

  std::unique_ptr<TextStream> stream_;
  StopText stop_;
  std::string text_;
};

}  // namespace trireme::data
