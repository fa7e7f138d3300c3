// What is shown of an answer as its tokens come, and which stop text ends it.
#include "data/text/answer_text.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace trireme::data {
namespace {

/// What is shown of an answer, token by token until a stop text has come, and `|` there.
std::string told(const std::string& answer, std::vector<std::string> stops, int64_t least_tokens = 0) {
  const std::unique_ptr<Tokenizer> letters = character_tokenizer("abc\n");
  AnswerText text(*letters, std::move(stops), least_tokens);
  std::string shown;
  for (const int64_t token : letters->encode(answer)) {
    shown += text.push(token);
    if (text.is_stopped()) return shown + "|";
  }
  shown += text.finish();
  EXPECT_EQ(text.text(), shown);
  return text.is_stopped() ? shown + "|" : shown;
}

TEST(AnswerText, EndsAtTheFirstStopText) {
  EXPECT_EQ(told("ab\nc", {"\n"}), "ab|");
  EXPECT_EQ(told("aabc", {"abc", "bb"}), "a|");
  EXPECT_EQ(told("abab", {"abc"}), "abab");
}

/// As vLLM has it: stop texts that end within the shortest answer are part of it.
TEST(AnswerText, StopTextsCountBehindTheLeastTokens) {
  EXPECT_EQ(told("\na\n\nb", {"\n"}, 2), "\na|");
  EXPECT_EQ(told("\na\n\nb", {"\n"}, 3), "\na\n|");
  EXPECT_EQ(told("ab", {"ab"}, 1), "|") << "it ends behind them";
  EXPECT_EQ(told("abab", {"ab"}, 2), "ab|");
  EXPECT_EQ(told("ab", {"ab"}, 2), "ab");
  // A short stop text within what is held back for a longer one.
  EXPECT_EQ(told("abab", {"abab", "b"}, 2), "|");
  EXPECT_EQ(told("abac", {"abab", "b"}, 2), "abac");
}

}  // namespace
}  // namespace trireme::data
