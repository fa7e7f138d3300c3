// Options of verbs that run models: which device, and what happens to what it has no kernel for.
#pragma once

#include <cstdlib>
#include <string>

#include "base/report/log.h"
#include "base/text/options.h"
#include "engine/session/session.h"
#include "runtime/open_device.h"

namespace trireme::cli {

struct DeviceOptions {
  std::string device = "cpu";
  bool host_fallback = true;
  bool graphs = true;
  bool allow_tf32 = false;
  bool deterministic = false;
  bool oversubscribe_devices = false;

  void fields(base::OptionList& f) {
    f.add("device", &device, "cpu, cuda, cuda:N, or emulated[:N]: CUDA kernels run on the host, for tests");
    f.add("host_fallback", &host_fallback,
          "run operators that the device has no kernel for on the CPU; without it they are refused");
    f.add("oversubscribe_devices", &oversubscribe_devices,
          "let ranks share devices where they outnumber them");
    f.add("graphs", &graphs, "record a GPU's launches in the second run and replay them from then on");
    f.add("allow_tf32", &allow_tf32,
          "a GPU rounds the operands of f32 products to 10 bits of mantissa, as TRIREME_CUDA_TF32=1 does");
    f.add("deterministic", &deterministic,
          "a GPU's products have one order of sums for any number of rows, as TRIREME_CUDA_DETERMINISTIC=1 "
          "does");
  }
  void apply(engine::SessionOptions& options) const {
    options.device = oversubscribe_devices ? runtime::shared_device(device) : device;
    options.host_fallback = host_fallback;
    options.graphs = graphs;
    tell_kernels();
  }
  /// Puts the options of kernels into the environment, before programs are made.
  void tell_kernels() const {
    if (allow_tf32) setenv("TRIREME_CUDA_TF32", "1", 1);  // kernels have no other channel
    if (deterministic) setenv("TRIREME_CUDA_DETERMINISTIC", "1", 1);
  }
};

/// Says once which operators of the program run on the host though it is a device's.
inline void warn_of_host_steps(const compile::Program& program, base::Log& log) {
  const std::string names = program.host_operators();
  if (!names.empty()) log.warning("runtime", "host_fallback", {{"operators", names}});
}

}  // namespace trireme::cli
