// Poolings that exist over both orders of axes.
#pragma once

#include <string_view>

namespace trireme::ops {

/// The operator that pools [n, h, w, c] as `op` pools [n, c, h, w]; empty where there is none.
inline std::string_view channels_last_form(std::string_view op) {
  if (op == "max_pool") return "max_pool_nhwc";
  if (op == "average_pool") return "average_pool_nhwc";
  return op == "global_average_pool" ? "global_average_pool_nhwc" : "";
}

}  // namespace trireme::ops
