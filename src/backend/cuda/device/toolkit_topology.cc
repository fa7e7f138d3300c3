// Asks the driver how GPUs are connected.
#include <cuda_runtime.h>

#include "backend/cuda/device/cuda_device.h"
#include "backend/cuda/device/topology.h"
#include "base/error.h"

namespace trireme::cuda {
namespace {

std::string name_of_gpu(int ordinal) { return base::concat("cuda:", ordinal); }

std::string pci_address(int ordinal) {
  char text[32] = {};
  if (cudaDeviceGetPCIBusId(text, sizeof text, ordinal) != cudaSuccess) {
    cudaGetLastError();
    return {};
  }
  return text;
}

/// The driver reports peer access and native atomics; NVLink offers the latter, PCIe of today's GPUs does
/// not.
std::string pair_text(int from, int to) {
  const auto ask = [&](cudaDeviceP2PAttr what) {
    int value = -1;
    if (cudaDeviceGetP2PAttribute(&value, what, from, to) == cudaSuccess) return value;
    cudaGetLastError();
    return -1;
  };
  const int access = ask(cudaDevP2PAttrAccessSupported);
  if (access < 0) return "unknown: the driver does not say";
  if (access == 0) return "no peer access: copies go over the host";
  const int atomics = ask(cudaDevP2PAttrNativeAtomicSupported), rank = ask(cudaDevP2PAttrPerformanceRank);
  return base::concat("peer access, ", atomics > 0 ? "native atomics: NVLink" : "no native atomics: PCIe",
                      ", performance rank ", rank);
}

}  // namespace

std::vector<TopologyLine> describe_topology() {
  std::vector<TopologyLine> lines;
  try {
    const auto count = static_cast<int>(list_gpus().size());
    for (int i = 0; i < count; ++i) {
      const std::string address = pci_address(i);
      lines.push_back(
          {name_of_gpu(i), address.empty() ? "PCI address unknown" : address + ", " + numa_text(address)});
    }
    for (int i = 0; i < count; ++i) {
      for (int j = i + 1; j < count; ++j)
        lines.push_back({base::concat(name_of_gpu(i), " - ", name_of_gpu(j)), pair_text(i, j)});
    }
    if (count == 1) lines.push_back({"links", "none: there is one GPU"});
  } catch (const base::Error& e) {
    lines.push_back({"links", "unknown: " + e.message()});
  }
  return lines;
}

}  // namespace trireme::cuda
