// Fuzzes grammars: any bytes as a schema, expression or EBNF are accepted or refused, and an accepted grammar
// reads text in bounded time and memory.
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "data/grammar/matcher.h"
#include "tests/fuzz_bounds.h"

namespace {

template <class Read>
void follow(Read read) {
  using trireme::data::GrammarAutomaton;
  try {
    GrammarAutomaton automaton(read());
    GrammarAutomaton::State state = automaton.start();
    // Feeds the first byte that is allowed, up to 64 times.
    for (int i = 0; i < 64 && state != GrammarAutomaton::kDead; ++i) {
      GrammarAutomaton::State next = GrammarAutomaton::kDead;
      for (int byte = 0; byte < 256 && next == GrammarAutomaton::kDead; ++byte)
        next = automaton.step(state, static_cast<uint8_t>(byte));
      state = next;
    }
  } catch (const trireme::base::Error& e) {
    if (e.code() == trireme::base::ErrorCode::internal) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const trireme::fuzz::BoundedWork bounded(size,
                                           {.fixed_peak_bytes = size_t{512} << 20, .peak_per_byte = 8192});
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  follow([&] { return trireme::data::grammar_of_regex(text); });
  follow([&] { return trireme::data::grammar_of_ebnf(text); });
  follow([&] { return trireme::data::grammar_of_schema(trireme::base::parse_json(text)); });
  return 0;
}
