// Why a configuration is refused, for tests.
#pragma once

#include <string>
#include <string_view>

#include "base/error.h"
#include "serve/config/model_config.h"

namespace trireme::serve {

/// The message, or "accepted".
inline std::string refusal(std::string_view text, bool is_json = false) {
  try {
    is_json ? parse_model_config_json(text) : parse_model_config(text);
  } catch (const base::Error& e) {
    return e.message();
  }
  return "accepted";
}

}  // namespace trireme::serve
