// How a training session is made.
#pragma once

#include <string>
#include <vector>

#include "lower/step_options.h"

namespace trireme::comm {
class Mesh;
}

namespace trireme::engine {

/// What decides the programs, and where they run.
struct TrainOptions : lower::StepOptions {
  std::string device = "cpu";  ///< as runtime::open_device() takes it
  bool host_fallback =
      true;            ///< nodes that the device has no kernel for run on the CPU; else they are refused
  bool graphs = true;  ///< a device's launches are recorded once and replayed
  int threads = 0;     ///< 0: all cores this process may use
  std::vector<int> cpus = {};
  size_t max_programs = 64;  ///< compiled sizes of parts of a step, or of steps of a pipeline, kept
  int64_t memory_bytes = 0;  ///< programs that need more are refused; 0: what this process may use
  /// The ranks that train together, of the shape strategy.mesh(); null: this one alone. Outlives the session,
  /// whose construction, step(), prepare() and trained_graph() are then collective.
  comm::Mesh* mesh = nullptr;
};

}  // namespace trireme::engine
