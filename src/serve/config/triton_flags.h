// Triton's command line in our words, so that a start script of tritonserver serves as it is.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/text/json.h"
#include "serve/config/access_options.h"

namespace trireme::serve {

/// The words that `trireme serve` parses, and what of the given ones has no effect here, each with its
/// reason.
struct TritonFlags {
  std::vector<std::string> words;
  std::vector<std::string> notes;
  base::Json log_settings = {};  ///< as /v2/logging takes them; null: none
  std::optional<bool> wants_tls = {}, wants_client_certificates = {};
};

/// Replaces options that only tritonserver has; all other words stay as they are, ours too. Throws
/// unsupported for one that asks for what cannot be had, naming the reason, and invalid_argument for a
/// malformed value.
TritonFlags translate_triton_flags(std::span<const std::string> words);
/// Throws invalid_argument where TLS was asked for and the options have no certificate, or the reverse.
void check_tls(const TritonFlags& flags, const AccessOptions& access);

}  // namespace trireme::serve
