// Measures tokenization on one thread, in bytes of text per second. bench/wordpiece_peer.py measures the
// tokenizers package.
#include <benchmark/benchmark.h>

#include <cstdlib>

#include "base/error.h"
#include "base/files/file.h"
#include "data/text/wordpiece.h"

namespace {

using trireme::base::concat;

/// A file of the shared data ($TRIREME_SHARED_DATA).
std::string shared(const char* relative) {
  const char* root = std::getenv("TRIREME_SHARED_DATA");
  trireme::base::require(root != nullptr, "set TRIREME_SHARED_DATA to the shared data");
  return trireme::base::read_file(concat(root, "/", relative));
}

void tokenize_lines(benchmark::State& state, const char* corpus) {
  const auto tokenizer =
      trireme::data::WordPiece::from_vocab(shared("tokenizers/bert-base-uncased/vocab.txt"));
  const std::string text = shared(corpus);
  size_t tokens = 0;
  for (auto _ : state) {
    tokens = 0;
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      tokens += tokenizer.encode(std::string_view(text).substr(begin, end - begin)).ids.size();
      begin = end + 1;
    }
    benchmark::DoNotOptimize(tokens);
  }
  state.SetBytesProcessed(static_cast<int64_t>(text.size()) * state.iterations());
  state.counters["tokens"] = static_cast<double>(tokens);
}

}  // namespace

// English prose a line at a time, and the vocabulary itself: single words of many scripts.
BENCHMARK_CAPTURE(tokenize_lines, english, "text/wikitext-2/test.txt")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(tokenize_lines, many_scripts, "tokenizers/bert-base-uncased/vocab.txt")
    ->Unit(benchmark::kMillisecond);
