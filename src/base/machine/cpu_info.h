// What processor the program runs on: for choosing thread counts and for the head of every report.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/text/json.h"

namespace trireme::base {

struct CpuInfo {
  std::string model;             // as /proc/cpuinfo names it
  std::vector<int> allowed;      // logical processors this process may run on
  double quota = 0;              // processors' worth of time the control group allows; 0 = no limit
  std::vector<std::string> isa;  // vector extensions, by the names compilers use: "avx2", "avx512f", ...
  int64_t l1d_bytes = 0;
  int64_t l2_bytes = 0;
  int64_t l3_bytes = 0;  // of the first processor; 0 if unknown

  /// Threads worth starting: the allowed processors, or less under a quota; at least 1.
  int threads() const;
  bool has(std::string_view extension) const;
  Json to_json() const;
};

CpuInfo read_cpu_info();

}  // namespace trireme::base
