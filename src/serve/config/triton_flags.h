// Triton's command line in our words, so that a start script of tritonserver serves as it is.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace trireme::serve {

/// The words that `trireme serve` parses, and what of the given ones has no effect here, each with its
/// reason.
struct TritonFlags {
  std::vector<std::string> words;
  std::vector<std::string> notes;
};

/// Replaces options that only tritonserver has; all other words stay as they are, ours too. Throws
/// unsupported for one that asks for what cannot be had, naming the reason, and invalid_argument for a
/// malformed value.
TritonFlags translate_triton_flags(std::span<const std::string> words);

}  // namespace trireme::serve
