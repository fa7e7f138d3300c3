// Tests grammars as automata: they accept the same texts as naive matchers, masks agree with trying every
// token, and texts written at random under the masks match the grammar.
#include "data/grammar/grammar.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <regex>

#include "base/error.h"
#include "base/utf8.h"
#include "data/grammar/matcher.h"

namespace trireme::data {
namespace {

using base::Json;

/// A vocabulary of byte strings; the last token ends an answer.
class ByteStrings : public Tokenizer {
 public:
  explicit ByteStrings(std::vector<std::string> tokens) : tokens_(std::move(tokens)) {}
  std::vector<int64_t> encode(std::string_view, bool) const override { return {}; }
  std::unique_ptr<TextStream> stream() const override { return nullptr; }
  std::optional<int64_t> find(std::string_view) const override { return std::nullopt; }
  int64_t vocabulary_size() const override { return static_cast<int64_t>(tokens_.size()) + 1; }
  std::string token_bytes(int64_t id) const override {
    return id < static_cast<int64_t>(tokens_.size()) ? tokens_[static_cast<size_t>(id)] : "";
  }
  bool is_special(int64_t id) const override { return id == end(); }
  int64_t end() const { return static_cast<int64_t>(tokens_.size()); }

 private:
  std::vector<std::string> tokens_;
};

/// All single bytes, and random strings of the letters that the tests use.
ByteStrings vocabulary(uint32_t seed) {
  std::mt19937 rng(seed);
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  const std::string letters = "ab01\"{}[]:, \\truefalsn-.\xC3\xA9";
  for (int i = 0; i < 600; ++i) {
    std::string& token = tokens.emplace_back();
    for (size_t n = 2 + rng() % 5; n > 0; --n) token.push_back(letters[rng() % letters.size()]);
  }
  return ByteStrings(std::move(tokens));
}

bool takes(const Grammar& grammar, std::string_view text) {
  GrammarAutomaton automaton{Grammar(grammar)};
  return automaton.is_complete(automaton.step(automaton.start(), text));
}

/// A text written with random tokens that the masks allow; nothing if it does not end in time.
std::optional<std::string> walk(const std::shared_ptr<GrammarAutomaton>& automaton, const ByteStrings& words,
                                const std::shared_ptr<const TokenTrie>& trie, std::mt19937& rng) {
  GrammarMatcher matcher(automaton, trie);
  std::string text;
  for (int step = 0; step < 4000; ++step) {
    const TokenMask& mask = matcher.mask();
    std::vector<int64_t> allowed;
    for (int64_t id = 0; id < words.vocabulary_size(); ++id) {
      if ((mask[static_cast<size_t>(id) / 64] >> id % 64 & 1) != 0) allowed.push_back(id);
    }
    EXPECT_FALSE(allowed.empty()) << text;
    if (allowed.empty()) return std::nullopt;
    const bool may_end = allowed.back() == words.end();
    int64_t token = allowed[rng() % allowed.size()];
    // Long texts are brought to an end: a bracket or quote is closed wherever that is allowed.
    if (may_end && (allowed.size() == 1 || step > 60)) token = words.end();
    if (step > 60 && token != words.end()) {
      for (const char* close : {"\"", "}", "]"}) {
        for (const int64_t id : allowed) {
          if (words.token_bytes(id) == close) token = id;
        }
      }
    }
    EXPECT_TRUE(matcher.accept(token)) << text;
    if (token == words.end()) return text;
    text += words.token_bytes(token);
  }
  return std::nullopt;
}

TEST(Grammar, RegexesTakeWhatTheStandardLibraryMatches) {
  std::mt19937 rng(3);
  const std::string letters = "ab01-";
  const auto atom = [&]() -> std::string {
    switch (rng() % 6) {
      case 0: return "[a-b]";
      case 1: return "[^a0]";
      case 2: return "\\d";
      case 3: return "(?:a|b1|0-)";
      case 4: return "(ab|b)";
      default: return std::string(1, letters[rng() % letters.size()]);
    }
  };
  for (int round = 0; round < 60; ++round) {
    std::string pattern;
    for (size_t n = 1 + rng() % 5; n > 0; --n) {
      constexpr const char* kTimes[] = {"", "", "*", "+", "?", "{2}", "{1,3}", "{2,}"};
      pattern += atom() + kTimes[rng() % 8];
      if (n > 1 && rng() % 6 == 0) pattern += "|";
    }
    const std::regex oracle(pattern);
    GrammarAutomaton automaton(grammar_of_regex(pattern));
    for (int i = 0; i < 200; ++i) {
      std::string text;
      for (size_t n = rng() % 9; n > 0; --n) text.push_back(letters[rng() % letters.size()]);
      EXPECT_EQ(automaton.is_complete(automaton.step(automaton.start(), text)),
                std::regex_match(text, oracle))
          << pattern << " on " << text;
    }
  }
}

TEST(Grammar, ClassesHoldTheirCharactersAndNoOthers) {
  std::mt19937 rng(5);
  for (int round = 0; round < 40; ++round) {
    std::vector<GrammarBuilder::Range> ranges;
    for (size_t n = 1 + rng() % 3; n > 0; --n) {
      const char32_t limits[] = {0x7F, 0x7FF, 0xFFFF, 0x10FFFF};
      const char32_t most = limits[rng() % 4], a = rng() % (most + 1), b = rng() % (most + 1);
      ranges.push_back({std::min(a, b), std::max(a, b)});
    }
    const bool negated = rng() % 2 == 0;
    GrammarBuilder builder;
    const uint32_t root = builder.add_rule("root");
    builder.set_rows(root, {builder.characters(ranges, negated)});
    GrammarAutomaton automaton(builder.build(root));
    const auto expect = [&](char32_t code) {
      if (code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) return;
      const bool inside = std::any_of(ranges.begin(), ranges.end(),
                                      [&](auto r) { return code >= r.first && code <= r.last; });
      std::string text;
      base::append_utf8(text, code);
      EXPECT_EQ(automaton.is_complete(automaton.step(automaton.start(), text)), inside != negated)
          << uint32_t{code};
    };
    for (const auto& r : ranges) {
      for (const uint32_t code :
           {uint32_t{r.first}, uint32_t{r.last}, r.first + 1u, r.last + 1u, r.first - 1u})
        expect(code);
    }
    for (int i = 0; i < 300; ++i) expect(rng() % 0x110000);
  }
}

TEST(Grammar, MasksAreWhatTryingEveryTokenSays) {
  const ByteStrings words = vocabulary(7);
  const auto trie = std::make_shared<const TokenTrie>(words, std::vector<int64_t>{words.end()});
  const Json schema =
      base::parse_json(R"({"type":"object","properties":{"a":{"type":"array","items":{"type":"boolean"}},
                                           "b":{"type":["string","null"]}},"required":["a"]})");
  std::mt19937 rng(11);
  const Json texts = base::parse_json(R"({"type":"object","properties":{"a":{"type":"string"},
                                           "b":{"type":"string","maxLength":4}},"required":["a","b"]})");
  const Grammar counted =
      grammar_of_regex("[ -!#-Z\\[\\]-~]{2,7}");  // any plain bytes, but not tokens that are too long
  for (const Grammar& grammar :
       {grammar_of_schema(schema), grammar_of_schema(texts), grammar_of_json_object(), counted,
        grammar_of_either(grammar_of_regex("[^x]*"), grammar_of_choices({"xx", "ab"})),
        grammar_of_regex("(a|b0)*-?[0-1]{2}"),
        grammar_of_ebnf("root ::= \"[\" (root (\",\" root)*)? \"]\" | [ab]+\n")}) {
    GrammarAutomaton automaton{Grammar(grammar)};
    GrammarAutomaton::State state = automaton.start();
    for (int step = 0; step < 30 && state != GrammarAutomaton::kDead; ++step) {
      const TokenMask mask = *automaton.mask(state, *trie);
      std::vector<int64_t> allowed;
      for (int64_t id = 0; id < words.end(); ++id) {
        const bool may = automaton.step(state, words.token_bytes(id)) != GrammarAutomaton::kDead;
        EXPECT_EQ((mask[static_cast<size_t>(id) / 64] >> id % 64 & 1) != 0, may) << words.token_bytes(id);
        if (may) allowed.push_back(id);
      }
      const auto end = static_cast<size_t>(words.end());
      EXPECT_EQ((mask[end / 64] >> end % 64 & 1) != 0, automaton.is_complete(state));
      if (allowed.empty()) break;
      state = automaton.step(state, words.token_bytes(allowed[rng() % allowed.size()]));
    }
  }
}

/// A random schema. Below, fits() checks a value against it without using the grammar.
Json random_schema(std::mt19937& rng, int depth) {
  const size_t kind = rng() % (depth > 0 ? 9 : 6);
  if (kind == 0) return Json::object({{"type", "integer"}});
  if (kind == 1) return Json::object({{"type", "number"}});
  if (kind == 2) return Json::object({{"enum", Json::array({"a", 1, true, nullptr})}});
  if (kind == 3) return Json::object({{"type", Json::array({"boolean", "null"})}});
  if (kind == 4)
    return Json::object({{"type", "string"}, {"minLength", rng() % 3}, {"maxLength", 3 + rng() % 4}});
  if (kind == 5) return Json::object({{"type", "string"}, {"pattern", "^[ab]{1,3}-[0-9]+$"}});
  if (kind == 6) {
    return Json::object({{"type", "array"},
                         {"items", random_schema(rng, depth - 1)},
                         {"minItems", rng() % 3},
                         {"maxItems", 3 + rng() % 3}});
  }
  if (kind == 7)
    return Json::object(
        {{"anyOf", Json::array({random_schema(rng, depth - 1), random_schema(rng, depth - 1)})}});
  Json properties = Json::object(), required = Json::array();
  for (size_t i = 0, n = rng() % 4; i < n; ++i) {
    const std::string name = "k" + std::to_string(i) + (i == 2 ? "\"\xC3\xA9" : "");
    properties.set(name, random_schema(rng, depth - 1));
    if (rng() % 2 == 0) required.push_back(name);
  }
  return Json::object({{"type", "object"},
                       {"properties", properties},
                       {"required", required},
                       {"additionalProperties", false}});
}

bool fits(const Json& value, const Json& schema);

bool fits_type(const Json& value, const Json& schema, const std::string& type) {
  if (type == "integer") return value.is_integer();
  if (type == "number") return value.is_number();
  if (type == "boolean") return value.is_bool();
  if (type == "null") return value.is_null();
  if (type == "string") {
    if (!value.is_string()) return false;
    if (const Json* pattern = schema.find("pattern"))
      return std::regex_match(value.as_string(), std::regex(pattern->as_string()));
    int64_t n = 0;
    for (size_t at = 0; at < value.as_string().size(); ++n) base::next_code_point(value.as_string(), at);
    return n >= schema.get_or("minLength", int64_t{0}) && n <= schema.get_or("maxLength", INT64_MAX);
  }
  if (type == "array") {
    const auto n = static_cast<int64_t>(value.size());
    return value.is_array() && n >= schema.get_or("minItems", int64_t{0}) &&
           n <= schema.get_or("maxItems", INT64_MAX) &&
           std::all_of(value.as_array().begin(), value.as_array().end(),
                       [&](const Json& v) { return fits(v, schema.at("items")); });
  }
  if (!value.is_object()) return false;
  for (const auto& [key, member] : value.as_object()) {
    const Json* property = schema.at("properties").find(key);
    if (property == nullptr || !fits(member, *property)) return false;
  }
  const auto& required = schema.at("required").as_array();
  return std::all_of(required.begin(), required.end(),
                     [&](const Json& name) { return value.contains(name.as_string()); });
}

bool fits(const Json& value, const Json& schema) {
  if (const Json* options = schema.find("anyOf"))
    return std::any_of(options->as_array().begin(), options->as_array().end(),
                       [&](const Json& s) { return fits(value, s); });
  if (const Json* list = schema.find("enum"))
    return std::any_of(list->as_array().begin(), list->as_array().end(),
                       [&](const Json& v) { return v == value; });
  const Json& type = schema.at("type");
  if (type.is_string()) return fits_type(value, schema, type.as_string());
  return std::any_of(type.as_array().begin(), type.as_array().end(),
                     [&](const Json& t) { return fits_type(value, schema, t.as_string()); });
}

TEST(Grammar, WalksUnderRandomSchemasAlwaysParseAndFit) {
  const ByteStrings words = vocabulary(13);
  const auto trie = std::make_shared<const TokenTrie>(words, std::vector<int64_t>{words.end()});
  std::mt19937 rng(17);
  int ended = 0;
  for (int round = 0; round < 500; ++round) {
    const Json schema = random_schema(rng, 3);
    const auto automaton = std::make_shared<GrammarAutomaton>(grammar_of_schema(schema));
    const auto text = walk(automaton, words, trie, rng);
    if (!text) continue;
    ++ended;
    ASSERT_TRUE(fits(base::parse_json(*text), schema)) << schema.dump() << "\n" << *text;
  }
  EXPECT_GT(ended, 480);
}

TEST(Grammar, SchemasThatHoldThemselves) {
  const Json schema = base::parse_json(
      R"({"$defs":{"tree":{"type":"object","properties":{"v":{"type":"integer"},
         "kids":{"type":"array","items":{"$ref":"#/$defs/tree"}}},
         "required":["v","kids"]}},"$ref":"#/$defs/tree"})");
  const Grammar grammar = grammar_of_schema(schema);
  EXPECT_TRUE(
      takes(grammar, R"({"v":1,"kids":[{"v": -20, "kids":[]}, {"v":3,"kids":[{"v":0,"kids":[]}]}]})"));
  EXPECT_FALSE(takes(grammar, R"({"v":1,"kids":[{"v":2}]})"));
  EXPECT_FALSE(takes(grammar, R"({"v":01,"kids":[]})"));
}

TEST(Grammar, EbnfOfArithmetic) {
  const Grammar grammar = grammar_of_ebnf(
      "# sums\nroot ::= term ([-+] term)*\nterm ::= factor ([*/] factor)*  # products\n"
      "factor ::= [0-9]{1,3} | \"(\" root \")\" | \"\\u00e9\"\n");
  for (const char* good : {"1", "1+2*3", "((7))/12-\xC3\xA9", "(1+2)*(3-4)"})
    EXPECT_TRUE(takes(grammar, good)) << good;
  for (const char* bad : {"", "1+", "(1", "1234", "1)", "e"}) EXPECT_FALSE(takes(grammar, bad)) << bad;
}

base::ErrorCode code_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const base::Error& e) {
    return e.code();
  }
  return base::ErrorCode::internal;
}

TEST(Grammar, HostileOnesEndWithAnError) {
  using base::ErrorCode;
  const auto schema = [](const char* text) { return [=] { grammar_of_schema(base::parse_json(text)); }; };
  // Groups become rules, so a text of 10^12 letters needs only 4,000 symbols.
  EXPECT_NO_THROW(grammar_of_regex("((((a{1000}){1000}){1000}){1000})"));
  EXPECT_EQ(code_of([] {
              std::string many;
              for (int i = 0; i < 200; ++i) many += "[a-z]{10000}";
              grammar_of_regex(many);
            }),
            ErrorCode::exhausted);
  EXPECT_EQ(code_of([] { grammar_of_regex("(a"); }), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of([] { grammar_of_regex("(?=a)b"); }), ErrorCode::unsupported);
  EXPECT_EQ(code_of([] { grammar_of_regex(std::string(100000, '(')); }), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of([] { grammar_of_ebnf("root ::= root \"a\" | \"b\"\n"); }), ErrorCode::unsupported);
  EXPECT_EQ(code_of([] { grammar_of_ebnf("root ::= other\n"); }), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of(schema(R"({"$ref":"#"})")), ErrorCode::unsupported);
  EXPECT_EQ(code_of(schema(R"({"type":"integer","minimum":3})")), ErrorCode::unsupported);
  EXPECT_EQ(code_of(schema(R"({"type":"object","properties":{"a":{}},"required":["b"]})")),
            ErrorCode::unsupported);
  EXPECT_EQ(code_of(schema(R"({"type":"string","maxLength":1000000000})")), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of([] { grammar_of_choices({}); }), ErrorCode::invalid_argument);
  // A grammar with many readings of the same text, whose stacks grow without end.
  EXPECT_EQ(code_of([] {
              GrammarAutomaton automaton(
                  grammar_of_ebnf("root ::= \"a\" root \"b\" | \"a\" root \"c\" | \"a\" root | \"a\"\n"));
              automaton.step(automaton.start(), std::string(100000, 'a'));
            }),
            ErrorCode::exhausted);
}

TEST(Grammar, PartsKeepTheirOwnRules) {
  const Grammar one = grammar_of_regex("a+(b|c)"),
                other = grammar_of_ebnf("root ::= \"<\" root \">\" | \"b\"\n");
  const Grammar either = grammar_of_either(one, other);
  for (const char* text : {"ab", "aac", "b", "<<b>>"}) EXPECT_TRUE(takes(either, text)) << text;
  for (const char* text : {"", "a", "<ab>", "<b", "abb"}) EXPECT_FALSE(takes(either, text)) << text;
}

/// A lenient reading of a schema ignores bounds only; types and names still hold.
TEST(Grammar, LenientSchemasKeepTypes) {
  const Json schema = base::parse_json(R"({"type":"object","properties":{"n":{"type":"integer","minimum":3},
      "s":{"type":"string","pattern":"(?=a)b","format":"date"}},"required":["n","s"]})");
  EXPECT_THROW(grammar_of_schema(schema), base::Error);
  const Grammar lenient = grammar_of_schema(schema, true);
  EXPECT_TRUE(takes(lenient, R"({"n":1,"s":"any"})"));
  EXPECT_FALSE(takes(lenient, R"({"n":"1","s":"any"})"));
  EXPECT_FALSE(takes(lenient, R"({"n":1})"));
}

/// What only restricts values further is ignored, known or not; what values are made of is not.
TEST(Grammar, LenientSchemasIgnoreWhatRestricts) {
  const Json schema = base::parse_json(R"({"type":"object","properties":{
      "pet":{"oneOf":[{"$ref":"#/$defs/cat"}],"discriminator":{"propertyName":"kind"},"x-order":2}},
      "required":["pet"],"if":{},"then":{"required":["other"]},"not":{},"patternProperties":{"^x":{}},
      "$defs":{"cat":{"type":"object","properties":{"kind":{"const":"cat"}},"required":["kind"]}}})");
  EXPECT_THROW(grammar_of_schema(schema), base::Error);
  const Grammar lenient = grammar_of_schema(schema, true);
  EXPECT_TRUE(takes(lenient, R"({"pet":{"kind":"cat"}})"));
  EXPECT_FALSE(takes(lenient, R"({"pet":{"kind":"dog"}})"));
  const char* misplaced = R"({"anyOf":[{"type":"string"}],"properties":{"a":{}}})";
  EXPECT_THROW(grammar_of_schema(base::parse_json(misplaced), true), base::Error);
}

TEST(Grammar, ReferencesArePointersIntoTheSchema) {
  const auto of = [](const std::string& path) {
    Json schema = base::parse_json(R"({"$defs":{"a/b~c d":{"const":1},"list":[{"const":2},{"const":3}],
        "named":{"$anchor":"named","const":4}}})");
    schema.set("$ref", path);
    return grammar_of_schema(schema);
  };
  EXPECT_TRUE(takes(of("#/$defs/a~1b~0c%20d"), "1"));
  EXPECT_TRUE(takes(of("#/%24defs/list/1"), "3"));
  EXPECT_FALSE(takes(of("#/$defs/list/1"), "2"));
  for (const char* nowhere :
       {"#/$defs/list/2", "#/$defs/list/x", "#/$defs/list/", "#/$defs/a", "other#/$defs"})
    EXPECT_EQ(code_of([&] { of(nowhere); }), base::ErrorCode::invalid_argument) << nowhere;
  EXPECT_EQ(code_of([&] { of("#named"); }), base::ErrorCode::unsupported);
}

/// Repetitions of what may be empty have the texts of those of what is not.
TEST(Grammar, RepetitionsOfWhatMayBeEmpty) {
  std::mt19937 rng(19);
  constexpr std::pair<const char*, const char*> kSame[] = {{"(a?)*", "a*"},
                                                           {"(a*)*", "a*"},
                                                           {"(a|)*", "a*"},
                                                           {"(a?)+b", "a*b"},
                                                           {"(a*b?)*", "[ab]*"},
                                                           {"(a*b?)+0", "[ab]*0"},
                                                           {"((a?)*b?)*", "[ab]*"},
                                                           {"((a*)*)*1", "a*1"},
                                                           {"((a*|b)*0?)*", "[ab0]*"},
                                                           {"(-*(a?b?)*)*", "[ab-]*"},
                                                           {"(a?){2,}", "a*"},
                                                           {"(-?(ab)?)*", "(-|ab)*"}};
  for (const auto& [pattern, plain] : kSame) {
    const std::regex oracle(plain);
    GrammarAutomaton automaton(grammar_of_regex(pattern));
    for (int i = 0; i < 300; ++i) {
      std::string text;
      for (size_t n = rng() % 7; n > 0; --n) text.push_back("ab01-"[rng() % (i % 2 == 0 ? 2 : 5)]);
      EXPECT_EQ(automaton.is_complete(automaton.step(automaton.start(), text)),
                std::regex_match(text, oracle))
          << pattern << " on " << text;
    }
  }
  const Grammar rules = grammar_of_ebnf("root ::= item* \".\"\nitem ::= \"a\"? space\nspace ::= \" \"*\n");
  for (const char* good : {".", "a.", "  a aa ."}) EXPECT_TRUE(takes(rules, good)) << good;
  for (const char* bad : {"", "a", "b.", ". "}) EXPECT_FALSE(takes(rules, bad)) << bad;
  EXPECT_TRUE(takes(grammar_of_ebnf("root ::= (\"\")* \"a\"\n"), "a"));
  EXPECT_EQ(code_of([] { grammar_of_ebnf("root ::= (root? \"a\"?)*\n"); }), base::ErrorCode::unsupported);
}

TEST(Grammar, UnknownEscapesAreNoLetters) {
  for (const char* pattern : {"\\z", "\\0", "a\\h", "[\\e]", "\\Q.\\E", "\\cA"})
    EXPECT_EQ(code_of([&] { grammar_of_regex(pattern); }), base::ErrorCode::unsupported) << pattern;
  EXPECT_TRUE(takes(grammar_of_regex("\\.\\-\\/\\_[\\]\\^]"), ".-/_^"));
}

TEST(Grammar, ClassesHoldWhatIsNotInAClass) {
  for (const char* pattern : {"[\\s\\S]{3}", "[\\d\\D]{3}", "[\\w\\W]{3}", "[^\\W_]b[^\\S]"}) {
    const std::regex oracle(pattern);
    for (const char* text : {"a1\n", "ab ", "ab", "_b ", "0b\t", "abcd"})
      EXPECT_EQ(takes(grammar_of_regex(pattern), text), std::regex_match(text, oracle)) << pattern << text;
  }
  EXPECT_TRUE(takes(grammar_of_regex("[\\s\\S]"), "é"));
  EXPECT_EQ(code_of([] { grammar_of_regex("[!-\\d]"); }), base::ErrorCode::invalid_argument);
  EXPECT_TRUE(takes(grammar_of_regex("[!-\\x25]"), "$"));
}

/// As in Python and in ECMAScript without `u`.
TEST(Grammar, BracesThatRepeatNothingAreCharacters) {
  EXPECT_TRUE(takes(grammar_of_regex("{(a)}"), "{a}"));
  EXPECT_TRUE(takes(grammar_of_regex("a{b{x}{}"), "a{b{x}{}"));
  EXPECT_TRUE(takes(grammar_of_regex("a{2}{b}"), "aa{b}"));
  EXPECT_TRUE(takes(grammar_of_regex("\\{{2}\\}"), "{{}"));
  for (const char* pattern : {"{2}", "a{2}{3}", "({1,2})"})
    EXPECT_EQ(code_of([&] { grammar_of_regex(pattern); }), base::ErrorCode::invalid_argument) << pattern;
}

/// Numbers of end tokens come from configurations, which may name ones that the tokenizer does not have.
TEST(Grammar, EndTokensAreTheTokenizers) {
  const ByteStrings words = vocabulary(3);
  const int64_t size = words.vocabulary_size();
  const TokenTrie trie(words, {-1, words.end(), size, size + (int64_t{1} << 32)});
  EXPECT_EQ(trie.end(), std::vector<int64_t>{words.end()});
  EXPECT_EQ(code_of([&] { TokenTrie(words, {-1, size}); }), base::ErrorCode::unsupported);
}

/// What a pattern matches stands in a JSON string, where quotes, backslashes and controls are escaped.
TEST(Grammar, PatternsOfSchemasKeepTheirTextsJson) {
  const auto grammar = [](const char* pattern) {
    return grammar_of_schema(Json::object({{"type", "string"}, {"pattern", pattern}}));
  };
  const auto expect_json = [&](const char* pattern, std::initializer_list<const char*> texts) {
    const Grammar g = grammar(pattern);
    for (const char* text : texts) {
      EXPECT_TRUE(takes(g, Json(text).dump())) << pattern << ": " << text;
      const std::string raw = "\"" + std::string(text) + "\"";
      EXPECT_EQ(takes(g, raw), raw == Json(text).dump()) << pattern << ": " << text;
    }
  };
  expect_json("^\\..$", {".a", ".\"", ".\\", ".\x01", ".\xC3\xA9"});
  expect_json("^[!-~]{2}$", {"ab", "\"\"", "\\a"});
  expect_json("^a\\s\"$", {"a \"", "a\t\"", "a\n\""});
  expect_json("^[^a]\\D$", {"b\n", "\"b"});
  expect_json("^\\\\\\x1f\x02$", {"\\\x1f\x02"});
  EXPECT_FALSE(takes(grammar("^[^a]$"), "\"a\""));
  EXPECT_FALSE(takes(grammar("^.$"), "\"\\n\""));
}

TEST(Grammar, EnumsKeepToTheirType) {
  const auto of = [](const char* schema) { return grammar_of_schema(base::parse_json(schema)); };
  const Grammar g = of(R"({"type":["string","integer"],"enum":["a",1,null,2.5,true]})");
  for (const char* good : {"\"a\"", "1"}) EXPECT_TRUE(takes(g, good)) << good;
  for (const char* bad : {"null", "2.5", "true"}) EXPECT_FALSE(takes(g, bad)) << bad;
  EXPECT_THROW(of(R"({"type":"string","enum":[1,2]})"), base::Error);
  EXPECT_THROW(of(R"({"type":"string","const":1})"), base::Error);
}

/// If others have filled a shared automaton, an answer continues with a new one at the same place.
TEST(Grammar, AFullAutomatonHoldsNobodyUp) {
  const ByteStrings words = vocabulary(3);
  const auto trie = std::make_shared<const TokenTrie>(words, std::vector<int64_t>{words.end()});
  const auto shared =
      std::make_shared<GrammarAutomaton>(grammar_of_ebnf("root ::= \"[\" root \"]\" | \"a\"\n"));
  GrammarMatcher matcher(shared, trie);
  const auto take = [&](std::string_view text) {
    for (const char c : text) {
      const auto id = static_cast<unsigned char>(c);
      EXPECT_NE(matcher.mask()[id / 64] >> id % 64 & 1, 0u) << text;
      EXPECT_TRUE(matcher.accept(id)) << text;
    }
  };
  take("[[[");
  GrammarAutomaton::State state = shared->start();
  EXPECT_EQ(code_of([&] {
              while (true) state = shared->step(state, "[");
            }),
            base::ErrorCode::exhausted);
  EXPECT_TRUE(shared->is_full());
  EXPECT_LT(shared->bytes(), int64_t{80} << 20);
  EXPECT_EQ(&matcher.automaton(), shared.get());
  take(std::string(40, '['));
  take("a" + std::string(20, ']'));
  EXPECT_NE(&matcher.automaton(), shared.get());
  take(std::string(23, ']'));
  EXPECT_TRUE(matcher.is_complete());
}

/// Each step of an ambiguous grammar does bounded work, with or without an error, and so does a whole answer.
TEST(Grammar, AmbiguityCostsAnAnswerLittle) {
  const ByteStrings words = vocabulary(3);
  const auto trie = std::make_shared<const TokenTrie>(words, std::vector<int64_t>{words.end()});
  const auto automaton = std::make_shared<GrammarAutomaton>(
      grammar_of_ebnf("root ::= \"a\" root \"b\" | \"a\" root \"c\" | \"a\" root | \"a\"\n"));
  GrammarMatcher matcher(automaton, trie);
  EXPECT_EQ(code_of([&] {
              for (int i = 0; i < 100000; ++i) {
                const int64_t before = automaton->work();
                matcher.mask();
                matcher.accept('a');
                EXPECT_LE(automaton->work() - before, int64_t{1} << 22);
              }
            }),
            base::ErrorCode::exhausted);
  EXPECT_LT(automaton->work(), int64_t{1} << 27);
}

/// Rules that may be empty are found in time linear in the grammar, not quadratic.
TEST(Grammar, LongRowsOfEmptyRulesAreReadInTime) {
  std::string text = "root ::=", rules;
  for (int i = 0; i < 60000; ++i) {
    text += " e" + std::to_string(i);
    rules += "e" + std::to_string(i) + " ::= \"\"\n";
  }
  const Grammar grammar = grammar_of_ebnf(rules + text + " \"a\"\n");
  EXPECT_GT(grammar.rules.size(), 60000u);
}

}  // namespace
}  // namespace trireme::data
