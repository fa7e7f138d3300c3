// The topology in builds without the toolkit.
#include "backend/cuda/device/topology.h"

namespace trireme::cuda {

std::vector<TopologyLine> describe_topology() {
  return {{"links", "unknown: this program was built without the CUDA toolkit (./dev build cuda)"}};
}

}  // namespace trireme::cuda
