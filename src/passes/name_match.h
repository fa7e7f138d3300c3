// Patterns by which options name weights, nodes and layers.
#pragma once

#include <string_view>

namespace trireme::passes {

/// Whether `text` contains `pattern` or, if the pattern has a '*', matches it as a whole.
bool name_matches(std::string_view pattern, std::string_view text);

}  // namespace trireme::passes
