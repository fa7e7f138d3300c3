// Times and sizes as reports of searches write them.
#pragma once

#include <cstdint>
#include <string>

#include "base/report/svg_plot.h"

namespace trireme::tune {

inline std::string ms(double ns) { return base::format_number(ns * 1e-6, ns < 1e7 ? 2 : 1); }
inline std::string mib(int64_t bytes) {
  return base::format_number(static_cast<double>(bytes) / (1 << 20), 0);
}

}  // namespace trireme::tune
