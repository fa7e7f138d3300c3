// What tests of texts share: the pages of a small decoder, and what texts were told.
#pragma once

#include <map>
#include <ostream>
#include <vector>

#include "sched/text/token_scheduler.h"

namespace trireme::sched {

/// Of 16 tokens of tests::tiny_llama(): layers, keys and values, heads, tokens, dim, f32.
inline constexpr int64_t kTinyPageBytes = 2 * 2 * 2 * 16 * 8 * 4;

/// What a text was told: tokens, the logarithms of their chances, what might have come, and how it ended.
struct TextAnswer {
  std::vector<int64_t> tokens, likeliest;
  std::vector<double> logs;
  engine::FinishReason finish = engine::FinishReason::none;
  bool operator==(const TextAnswer&) const = default;
};
using TextAnswers = std::map<int64_t, TextAnswer>;

inline void PrintTo(const TextAnswer& a, std::ostream* out) {
  *out << to_string(a.finish) << ":";
  for (size_t i = 0; i < a.tokens.size(); ++i) {
    *out << " " << a.tokens[i];
    if (i < a.logs.size()) *out << "@" << a.logs[i];
  }
}

}  // namespace trireme::sched
