// How the GPUs of a machine are wired, for people and for the record of a measurement.
#pragma once

#include <string>
#include <vector>

namespace trireme::cuda {

/// What the driver and the kernel say of one GPU, or of a pair.
struct TopologyLine {
  std::string name;  ///< "cuda:0", "cuda:0 - cuda:1"
  std::string text;
};

/// A line for each GPU (PCI address, NUMA node) and each pair (peer access, kind of link). One line that says
/// why where nothing can be known. Throws nothing.
std::vector<TopologyLine> describe_topology();

/// The NUMA node of a PCI device ("0000:65:00.0") in words, as sysfs has it.
std::string numa_text(const std::string& pci_address);

}  // namespace trireme::cuda
