// How a session is made: device, threads, limits, and the strategy by which ranks hold the model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "passes/pass.h"
#include "passes/strategy.h"

namespace trireme::comm {
class Mesh;
}

namespace trireme::engine {

class RankService;
class RunStop;

struct SessionOptions {
  std::string device = "cpu";  ///< as runtime::open_device() takes it
  bool host_fallback =
      true;                ///< nodes that the device has no kernel for run on the CPU; else they are refused
  bool graphs = true;      ///< a device's launches are recorded once and replayed
  bool plan_only = false;  ///< programs are compiled, not run; the device need not be there
  int threads = 0;         ///< 0: all cores this process may use
  std::vector<int> cpus = {};    ///< pins thread i to cpus[i]; empty: not pinned
  size_t max_programs = 64;      ///< compiled shapes kept
  std::string only_kernel = {};  ///< "reference": run plain kernels where they exist
  int64_t memory_bytes = 0;      ///< programs that need more are refused; 0: what this process may use
  passes::PassOptions passes = {};
  /// Precision of products, and the ranks that hold the model together, by tp and pp: threads of this
  /// process, which share its cores. Weights are stored as the prepared model's strategy says, which is to be
  /// this one.
  passes::Strategy strategy = {};
  /// The ranks of a job of that shape instead: this is rank 0 of it, the others follow(). Outlives the
  /// session.
  comm::Mesh* mesh = nullptr;
  /// Or: where a group of them is opened, on this first rank of a job, and the name by which the others load
  /// the model.
  RankService* service = nullptr;
  std::string model_key = {};
  /// By which another thread ends a run. Outlives the session; null: every run goes on to its end.
  const RunStop* stop = nullptr;
};

}  // namespace trireme::engine
