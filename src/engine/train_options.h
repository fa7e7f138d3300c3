// How a training session is made.
#pragma once

#include <string>
#include <vector>

#include "passes/train/optimizer.h"
#include "passes/pass.h"
#include "passes/precision/precision.h"
#include "passes/train/recompute.h"
#include "passes/strategy.h"

namespace trireme::comm {
class Mesh;
}

namespace trireme::engine {

struct TrainOptions {
  passes::OptimizerOptions optimizer;
  passes::PrecisionOptions precision = {};  ///< of products; weights, moments and statistics stay f32
  bool scaled_loss = false;                 ///< loss_weight carries a loss scale, grad_scale its inverse
  bool guarded = false;                     ///< steps above norm_limit or loss_limit change nothing
  passes::RecomputeMode recompute = passes::RecomputeMode::none;
  int64_t activation_bytes = 0;  ///< above 0: recompute as little as keeps activations under this many bytes
  std::vector<std::string> freeze = {};  ///< params whose name contains one of these are not trained
  std::string device = "cpu";            ///< as runtime::open_device() takes it; pipelines train on cpu
  bool host_fallback =
      true;            ///< nodes that the device has no kernel for run on the CPU; else they are refused
  bool graphs = true;  ///< a device's launches are recorded once and replayed
  int threads = 0;     ///< 0: all cores this process may use
  std::vector<int> cpus = {};
  int64_t memory_bytes = 0;  ///< programs that need more are refused; 0: what this process may use
  passes::PassOptions passes = {};
  /// The ranks that train together, of the shape strategy.mesh(); null: this one alone. Outlives the session,
  /// whose construction, step(), prepare() and trained_graph() are then collective.
  comm::Mesh* mesh = nullptr;
  passes::Strategy strategy = {};
};

}  // namespace trireme::engine
