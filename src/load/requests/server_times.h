// What the server itself says of a load: its statistics before and after, and their difference.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/text/json.h"
#include "http/client.h"
#include "load/requests/target.h"

namespace trireme::load {

/// Sums of one model over all its versions, or differences of such.
struct ServerTimes {
  std::string model;
  int64_t requests = 0;    // that succeeded
  int64_t inferences = 0;  // rows
  int64_t batches = 0;
  int64_t queue_ns = 0, compute_input_ns = 0, compute_infer_ns = 0, compute_output_ns = 0;

  double mean_batch() const {
    return batches > 0 ? static_cast<double>(inferences) / static_cast<double>(batches) : 0;
  }
  /// Of a request, ns.
  double mean_of(int64_t sum_ns) const {
    return requests > 0 ? static_cast<double>(sum_ns) / static_cast<double>(requests) : 0;
  }
};

/// Asks for the statistics of models; those that do not answer are left out.
std::vector<ServerTimes> ask_server_times(const Target& target, const std::string& prefix,
                                          const std::vector<std::string>& models,
                                          const http::HeaderList& headers);

/// What was added between two askings; models that only one of them has are left out.
std::vector<ServerTimes> difference(const std::vector<ServerTimes>& before,
                                    const std::vector<ServerTimes>& after);

}  // namespace trireme::load
