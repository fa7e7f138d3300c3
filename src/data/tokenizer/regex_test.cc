// Expressions in Oniguruma's syntax: pieces as the package `tokenizers` 0.23 cuts them, refusals by name, and
// bounds on the work.
#include "data/tokenizer/regex.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "data/tokenizer/normalizer.h"
#include "data/tokenizer/pieces.h"
#include "data/tokenizer/regex_dialect.h"

namespace trireme::data {
namespace {

using Texts = std::vector<std::string>;

Texts pieces_of(std::string_view pattern, std::string_view text,
                SplitBehavior behavior = SplitBehavior::isolated, bool inverted = false) {
  Pieces pieces{std::string(text), {text.size()}};
  split(find_matches(Regex(pattern), inverted), behavior)(pieces, true);
  Texts texts;
  for (size_t i = 0; i < pieces.size(); ++i) texts.emplace_back(pieces[i]);
  return texts;
}

std::string refusal(std::string_view pattern) {
  try {
    const Regex regex(pattern);
  } catch (const base::Error& e) {
    return base::concat(base::to_string(e.code()), ": ", e.message());
  }
  return "none";
}

TEST(Regex, CutsAtMatchesOfNoLength) {
  EXPECT_EQ(pieces_of(R"((?=(\d{3})+(?!\d)))", "1234567 ab"), (Texts{"1", "234", "567 ab"}));
  EXPECT_EQ(pieces_of(R"((?<=[a-z])(?=[A-Z]))", "camelCaseWord"), (Texts{"camel", "Case", "Word"}));
  EXPECT_EQ(pieces_of(R"(\b)", "ab cd"), (Texts{"ab", " ", "cd"}));
  EXPECT_EQ(pieces_of("x*", "abxxc"), (Texts{"a", "b", "xx", "c"}));
  EXPECT_EQ(pieces_of(R"(\p{L}+|(?=1))", "ab1c"), (Texts{"ab", "1", "c"}));
  using enum SplitBehavior;
  EXPECT_EQ(pieces_of("(?=b)", "abab", removed), (Texts{"a", "ba", "b"}));
  EXPECT_EQ(pieces_of("(?=b)", "abab", merged_with_previous), (Texts{"a", "ba", "b"}));
  EXPECT_EQ(pieces_of("(?=b)", "abab", merged_with_next), (Texts{"a", "ba", "b"}));
  EXPECT_EQ(pieces_of("(?=b)", "abab", contiguous), (Texts{"a", "ba", "b"}));
  EXPECT_EQ(pieces_of("(?=b)", "abab", removed, true), Texts{});
  std::string text = "abxxc";
  replace_matches(Regex("x*"), "-")(text);
  EXPECT_EQ(text, "-a-b-c-");
  text.clear();
  replace_matches(Regex("x*"), "-")(text);
  EXPECT_EQ(text, "");
}

struct Case {
  std::string_view pattern, text;
  Texts pieces;
};

TEST(Regex, MeansWhatOnigurumaMeans) {
  const Case cases[] = {
      {R"(\h+)", "a b face 12 g", {"a", " ", "b", " ", "face", " ", "12", " g"}},
      {R"([\h]+)", "ag 1", {"a", "g ", "1"}},
      {R"([^\h])", "ag 1", {"a", "g", " ", "1"}},
      {R"(\H+)", "ag 1", {"a", "g ", "1"}},
      {R"((?m:.)+)", "a\nb", {"a\nb"}},
      {R"((?-m:.)+)", "a\nb", {"a", "\n", "b"}},
      {R"((?mi:A.))", "a\nb", {"a\n", "b"}},
      {R"(\O)", "a\nb", {"a", "\n", "b"}},
      {"(a(?i)b|c)D", "aBDCDcd", {"aBD", "CDcd"}},
      {"a{,2}", "aaab", {"aa", "a", "b"}},
      {"a{2}+", "aaaaab", {"aaaa", "ab"}},
      {"a{2}?", "aaab", {"aa", "a", "b"}},
      {"a{1,2}+b", "aaab", {"aaab"}},
      {"a{,}", "a{,}", {"a{,}"}},
      {R"(\v)",
       "a\x0b"
       "b\nc",
       {"a", "\x0b", "b\nc"}},
      {R"(\u00e9|\xc3\xa8)", "aébè", {"a", "é", "b", "è"}},
      {R"(\Qa\E)", "aQaEb", {"a", "QaE", "b"}},
      {R"(\pL)", "apLb", {"a", "pL", "b"}},
      {"[a[bc]]+", "abcd", {"abc", "d"}},
      {"[[a-c][x-z]]+", "abxd", {"abx", "d"}},
      {"[^a[bc]]+", "abcd", {"abc", "d"}},
      {R"([\p{L}[0-9]]+)", "ab1!", {"ab1", "!"}},
      {"[^a-z&&[^aeiou]]", "abc1", {"a", "bc", "1"}},
      {R"([^\W_]+)", "aé_b²", {"aé", "_", "b", "²"}},
      {R"([\W\d]+)", "a1 b", {"a", "1 ", "b"}},
      {"[[:punct:]]", "a$.b", {"a", "$", ".", "b"}},
      {R"(\p{Punct})", "a$.b", {"a$", ".", "b"}},
      {R"(\p{Emoji})", "a\U0001F44D", {"a", "\U0001F44D"}},
      {R"(\p{Letter}|\p{^Alnum}|\p{Space})", "a1 ", {"a", "1", " "}},
      {"(?i)ss", "ß SS", {"ß", " ", "SS"}},
      {"(?i)ß", "ssẞ", {"ss", "ẞ"}},
      {"(?i)effi", "eﬃ", {"eﬃ"}},
      {R"(\X)", "\U0001F600\U0001F600e\u0301", {"\U0001F600", "\U0001F600", "e\u0301"}},
      {"(?x) a  b # c", "ab", {"ab"}},
      {"(?#a comment)a", "ab", {"a", "b"}},
      {R"(\B)", "ab c²", {"a", "b c", "²"}},
      {R"((a)\k<-1>|(?<=\d)\K)", "aab1c", {"aa", "b1", "c"}},
  };
  for (const Case& c : cases) EXPECT_EQ(pieces_of(c.pattern, c.text), c.pieces) << c.pattern;
}

TEST(Regex, RefusesByName) {
  for (const auto& [pattern, why] : std::initializer_list<std::pair<const char*, const char*>>{
           {"(?~ab)", "unsupported: '(?~ab)': regular expression: (?~, an absent operator"},
           {R"(\y)", R"(unsupported: '\y': regular expression: \y and \Y)"},
           {"(?W)a", "unsupported: '(?W)a': regular expression: a group that begins (?W"},
           {"(*FAIL)", "unsupported: '(*FAIL)': regular expression: (*, a callout"},
           {"(?s)a", "unsupported: '(?s)a': regular expression: a group that begins (?s"},
           {"(?P<n>a)", "unsupported: '(?P<n>a)': regular expression: a group that begins (?P"},
           {"a{3,1}", "unsupported: 'a{3,1}': regular expression: {n,m} with n above m"},
           {R"(\p{In_Greek})", "the property \\p{In_Greek} of characters"},
           {"[[:foo:]]", "a set of characters named [:foo:]"},
           {R"([a-\d])", "invalid_argument: '[a-\\d]': regular expression: a range that ends in a set"},
           {"[a-[b]]", "a range that ends in a class"},
           {R"((?i)[\p{Lu}])", "letters of one case, in a class where case is ignored"},
           {R"((?<n>a)\1)", "a reference by number beside groups with names"},
           {"(?=a)*", "nothing to repeat"},
           {"(a", "a group has no end"},
           {"[]", "a class has no end"},
           {R"(\xe9)", "that are no bytes of a character"}}) {
    EXPECT_NE(refusal(pattern).find(why), std::string::npos) << refusal(pattern);
  }
}

/// Searches see the text in parts, whose ends must not show.
TEST(Regex, SeesLongTextsAsWholeOnes) {
  std::string line(6000, 'a');
  line += "  \n";
  std::string text;
  for (int i = 0; i < 4; ++i) text += line;
  EXPECT_EQ(pieces_of(R"(\w+)", text).size(), 8u);
  EXPECT_EQ(pieces_of(R"(\s+(?!\S)|\s+)", text).size(), 11u);
  EXPECT_EQ(pieces_of("[^\n]+\n", text).size(), 4u);
  EXPECT_EQ(pieces_of("$", text).size(), 5u);
  EXPECT_EQ(pieces_of(R"(\z|zz)", text).size(), 1u);
  EXPECT_EQ(pieces_of(R"((?=(\d{3})+(?!\d)))", std::string(5000, '1')).size(), 1667u);
}

TEST(Regex, BoundsTheWorkForAText) {
  const std::pair<const char*, std::string> cases[] = {
      {R"((?=(\d{3})+(?!\d)))", std::string(300000, '1')},
      {R"(\d{1,3}(?=(?:\d{3})*\b))", std::string(300000, '1')},
      {"((a+)+)+b|a", std::string(30, 'a')}};
  for (const auto& [pattern, text] : cases) {
    try {
      pieces_of(pattern, text);
      ADD_FAILURE() << pattern;
    } catch (const base::Error& e) {
      EXPECT_EQ(e.code(), base::ErrorCode::exhausted) << e.message();
    }
  }
}

}  // namespace
}  // namespace trireme::data
