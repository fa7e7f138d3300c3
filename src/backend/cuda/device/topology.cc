// Reads from sysfs where devices are attached.
#include "backend/cuda/device/topology.h"

#include <algorithm>
#include <cctype>
#include <fstream>

namespace trireme::cuda {

std::string numa_text(const std::string& pci_address) {
  std::string lower = pci_address;  // sysfs writes lower case
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  int node = -1;
  std::ifstream file("/sys/bus/pci/devices/" + lower + "/numa_node");
  if (!(file >> node)) return "NUMA node unknown: sysfs does not show the device";
  return node < 0 ? "NUMA node unknown: the machine does not say" : "NUMA node " + std::to_string(node);
}

}  // namespace trireme::cuda
