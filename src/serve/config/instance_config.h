// instance_group of a model's configuration: how many instances there are, and what they need to run.
#pragma once

#include <string>
#include <vector>

#include "base/text/json.h"
#include "sched/rate_limiter.h"
#include "serve/config/pbtxt.h"

namespace trireme::serve {

/// Instances that are alike.
struct InstanceGroup {
  std::string name;  ///< empty: after the model
  std::string kind = "KIND_CPU";
  bool has_kind = false;        ///< else instances run where the server's others do
  int count = 1;                ///< on each GPU of KIND_GPU
  std::vector<int> gpus = {};   ///< of KIND_GPU; empty: the first
  sched::RateClaim claim = {};  ///< rate_limiter; priority 0: none was given, which counts as 1

  /// The device of each instance as engine::SessionOptions takes it; empty: the server's.
  std::vector<std::string> devices() const;
};

/// Throws invalid_argument or unsupported with the line.
InstanceGroup read_instance_group(const std::vector<TextField>& fields);
/// Groups without a kind run where the server's models do: where that is a GPU, says so, so that the printed
/// configuration can be given back.
void name_device(std::vector<InstanceGroup>& groups, int instances, const std::string& device);
base::Json instance_group_json(const InstanceGroup& group);

}  // namespace trireme::serve
