// Measures token masks of answers that follow a JSON schema, by vocabulary: with empty and with full caches.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <random>

#include "base/error.h"
#include "data/grammar/matcher.h"

namespace {

using namespace trireme;

const char* const kSchema = R"({"type":"object","properties":{"name":{"type":"string"},
  "address":{"type":"object","properties":{"street":{"type":"string"},"number":{"type":"integer"},
    "city":{"type":"string"}},"required":["street","number","city"]},
  "tags":{"type":"array","items":{"enum":["red","green","blue"]},"minItems":4,"maxItems":4},
  "score":{"type":"number"},"note":{"type":"string","maxLength":80}},
  "required":["name","address","tags","score","note"]})";

/// An answer of at most 400 random tokens.
void walk(const std::shared_ptr<data::GrammarAutomaton>& automaton,
          const std::shared_ptr<const data::TokenTrie>& trie, std::mt19937& rng, size_t& masks) {
  data::GrammarMatcher matcher(automaton, trie);
  for (int i = 0; i < 400; ++i, ++masks) {
    const data::TokenMask& mask = matcher.mask();
    // A random allowed token: starting at a random word, the lowest bit that is set.
    const size_t from = rng() % mask.size();
    size_t at = from;
    while (mask[at] == 0) at = at + 1 == mask.size() ? 0 : at + 1;
    const auto id = static_cast<int64_t>(at * 64) + __builtin_ctzll(mask[at]);
    if (id == trie->end()[0] || !matcher.accept(id)) return;
  }
}

struct Vocabulary {
  std::unique_ptr<data::Tokenizer> tokenizer;
  std::shared_ptr<const data::TokenTrie> trie;

  explicit Vocabulary(const char* name) {
    const char* root = std::getenv("TRIREME_SHARED_DATA");
    base::require(root != nullptr, "set TRIREME_SHARED_DATA to the shared data");
    tokenizer = data::open_tokenizer(base::concat(root, "/tokenizers/", name));
    trie = std::make_shared<const data::TokenTrie>(*tokenizer,
                                                   std::vector<int64_t>{tokenizer->vocabulary_size() - 1});
  }
};

/// An automaton of a compiled grammar whose caches are empty.
void first_answer(benchmark::State& state, const char* name) {
  const Vocabulary v(name);
  const data::Grammar grammar = data::grammar_of_schema(base::parse_json(kSchema));
  std::mt19937 rng(1);
  size_t masks = 0;
  for (auto _ : state) {
    const auto automaton = std::make_shared<data::GrammarAutomaton>(data::Grammar(grammar));
    walk(automaton, v.trie, rng, masks);
  }
  state.counters["us_a_mask"] = benchmark::Counter(static_cast<double>(masks) * 1e-6,
                                                   benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
  state.counters["masks"] = static_cast<double>(masks) / static_cast<double>(state.iterations());
}

void later_answers(benchmark::State& state, const char* name) {
  const Vocabulary v(name);
  const auto automaton =
      std::make_shared<data::GrammarAutomaton>(data::grammar_of_schema(base::parse_json(kSchema)));
  std::mt19937 rng(1);
  size_t masks = 0;
  for (int i = 0; i < 50; ++i) walk(automaton, v.trie, rng, masks);
  masks = 0;
  for (auto _ : state) walk(automaton, v.trie, rng, masks);
  state.counters["us_a_mask"] = benchmark::Counter(static_cast<double>(masks) * 1e-6,
                                                   benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
  state.counters["MB"] = static_cast<double>(automaton->bytes()) * 1e-6;
}

void compile(benchmark::State& state) {
  for (auto _ : state) {
    data::GrammarAutomaton automaton(data::grammar_of_schema(base::parse_json(kSchema)));
    benchmark::DoNotOptimize(automaton.start());
  }
}

}  // namespace

BENCHMARK(compile)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(first_answer, gpt2, "gpt2")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(first_answer, qwen2_5, "qwen2.5")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(later_answers, gpt2, "gpt2")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(later_answers, qwen2_5, "qwen2.5")->Unit(benchmark::kMillisecond);
