// What computing costs: prices of the machine, its cores and its GPUs, from an option or a file.
#pragma once

#include <string>

namespace trireme::serve {

/// Money an hour; the currency is the operator's. 0: no price.
struct Prices {
  double core_per_hour = 0;  ///< of one core
  double gpu_per_hour = 0;   ///< of one GPU with the cores that feed it

  /// `per_hour` is that of the whole machine: a core costs its part of `cores`, a GPU all of it. `file` is
  /// YAML or JSON with any of `machine`, `core` and `gpu`; what it says of cores and GPUs goes before what
  /// follows from the machine. Throws invalid_argument for other keys and negative prices.
  static Prices read(double per_hour, const std::string& file, int cores);

  bool is_known() const { return core_per_hour > 0 || gpu_per_hour > 0; }
  /// Of one instance while it computes: its threads, or its GPU.
  double per_busy_second(const std::string& device, int threads) const;
};

}  // namespace trireme::serve
