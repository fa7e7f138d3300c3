// Grammars of answers: found again by their sources, let go by bytes, left where they are full.
#include "serve/generative/grammar_cache.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace trireme::serve {
namespace {

constexpr std::string_view kLetters = "0123456789[]abcdef";
constexpr int64_t kEnd = 17;

TEST(GrammarCache, KeepsWhatWasUsedLast) {
  const auto tokenizer = data::character_tokenizer(kLetters);
  GrammarCache cache(*tokenizer, {kEnd}, 40000);
  int compiled = 0;
  const auto find = [&](const std::string& letter) {
    return cache.find(letter, [&] {
      ++compiled;
      return data::grammar_of_regex(letter + "+");
    });
  };
  const int64_t before = base::process_memory().used_bytes(base::MemoryUse::scratch);
  const auto first = find("a");
  EXPECT_EQ(find("a"), first);
  EXPECT_EQ(compiled, 1);
  EXPECT_GE(base::process_memory().used_bytes(base::MemoryUse::scratch) - before, first->bytes());
  for (int i = 0; i < 100; ++i) {
    find(std::to_string(i));
    find("a");
  }
  EXPECT_EQ(compiled, 101);
  EXPECT_EQ(find("a"), first);
  EXPECT_LT(cache.size(), 60u);
  find("0");  // was let go
  EXPECT_EQ(compiled, 102);
}

TEST(GrammarCache, SaysWhatIsWrong) {
  const auto tokenizer = data::character_tokenizer(kLetters);
  GrammarCache cache(*tokenizer, {kEnd});
  const auto code_of = [](GrammarCache& in, const char* regex) {
    try {
      in.find(regex, [&] { return data::grammar_of_regex(regex); });
    } catch (const base::Error& e) {
      return e.code();
    }
    return base::ErrorCode::internal;
  };
  EXPECT_EQ(code_of(cache, "(a"), base::ErrorCode::invalid_argument);
  EXPECT_EQ(code_of(cache, "(?=a)b"), base::ErrorCode::unsupported);
  std::string large;
  for (int i = 0; i < 200; ++i) large += "[a-f]{10000}";
  EXPECT_EQ(code_of(cache, large.c_str()), base::ErrorCode::invalid_argument) << "not that many wait";
  try {
    cache.find("tools", [&]() -> data::Grammar {
      try {
        return data::grammar_of_regex(large);
      } catch (const base::Error& e) {
        throw e.with("tool 'f'");
      }
    });
    ADD_FAILURE();
  } catch (const base::Error& e) {
    EXPECT_EQ(e.code(), base::ErrorCode::invalid_argument) << e.message();
  }
  EXPECT_EQ(cache.size(), 0u);
  GrammarCache endless(*tokenizer, {});
  EXPECT_EQ(code_of(endless, "a"), base::ErrorCode::unsupported);
}

/// A grammar whose automaton is full is compiled anew for whoever comes next.
TEST(GrammarCache, LeavesWhatIsFull) {
  const auto tokenizer = data::character_tokenizer(kLetters);
  GrammarCache cache(*tokenizer, {kEnd});
  const auto find = [&] {
    return cache.find("nested", [] { return data::grammar_of_ebnf("root ::= \"[\" root \"]\" | \"a\"\n"); });
  };
  const auto first = find();
  const auto filter = sched::AnswerGrammar::filter(first);
  int64_t count = 0;
  while (!first->is_full()) {
    ASSERT_FALSE(filter->mask().empty());
    filter->accept(10);
    ASSERT_LT(++count, 1'000'000);
  }
  EXPECT_GT(count, 1000);
  filter->accept(10);  // goes on by itself
  EXPECT_NE(find(), first);
  EXPECT_EQ(cache.size(), 1u);
}

}  // namespace
}  // namespace trireme::serve
