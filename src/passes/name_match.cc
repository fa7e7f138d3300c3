// Patterns by which options name weights, nodes and layers.
#include "passes/name_match.h"

namespace trireme::passes {

bool name_matches(std::string_view pattern, std::string_view text) {
  if (pattern.find('*') == std::string_view::npos) return text.find(pattern) != std::string_view::npos;
  // Greedy with one place to go back to: the last star and what it has eaten.
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
