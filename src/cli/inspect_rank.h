// What one rank of a mesh runs, printed without the mesh: programs of a training step, or of a model that
// several ranks hold.
#pragma once

#include <string>
#include <vector>

#include "base/text/options.h"
#include "cli/device_options.h"
#include "passes/strategy.h"

namespace trireme::cli {

struct RankInspection {
  std::string ranks;  ///< "dp=8,tp=8"
  int rank = 0;
  std::vector<std::string> set;  ///< keys of a training's configuration
  /// Of the verb's other options: sizes of inputs, and what is printed.
  struct Sizes {
    int64_t batch = 1;
    std::vector<std::string> shape, dim;
  } sizes;
  struct Prints {
    bool program = false, memory = false, why = false;
  } prints;
  int threads = 0;
  passes::WeightOptions weights;
  std::vector<std::string> off;

  void fields(base::OptionList& f);
};

/// `path`: a training's configuration (.yaml), of which a zoo network takes no memory for its weights; or a
/// model.
int inspect_rank(const std::string& path, const RankInspection& options, const DeviceOptions& on);

}  // namespace trireme::cli
