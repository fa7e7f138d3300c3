// Patterns with which options select weights, nodes and layers by name.
#include "passes/name_match.h"

namespace trireme::passes {

bool name_matches(std::string_view pattern, std::string_view text) {
  if (pattern.find('*') == std::string_view::npos) return text.find(pattern) != std::string_view::npos;
  // Greedy matching that backtracks to the last star only; `eaten`: the characters that it has matched.
  size_t p = 0, t = 0, star = std::string_view::npos, eaten = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      eaten = t;
    } else if (p < pattern.size() && pattern[p] == text[t]) {
      ++p, ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++eaten;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

}  // namespace trireme::passes
