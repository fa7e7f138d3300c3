// Opens a device by name: the one place that knows which backends there are.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.h"
#include "tensor/device.h"

namespace trireme::base {
class SharedCache;
}

namespace trireme::runtime {

/// A device this program sees, or why it sees none of its kind.
struct DeviceLine {
  std::string name;  ///< "cpu", "cuda:0"; "cuda" where there is none
  std::string text;  ///< what it is
  bool is_there = true;
};
/// Every kind of device this program knows.
std::vector<DeviceLine> list_devices();

/// "cpu", "cuda" or "cuda:N" for a GPU, "emulated" or "emulated:N" for devices that run CUDA kernels on the
/// host. Throws invalid_argument for another name, unavailable where there is no such GPU (and says why),
/// unsupported for what this build is without.
std::unique_ptr<tensor::Device> open_device(std::string_view name);

/// A rank among those of its machine.
struct LocalRank {
  int rank = 0, ranks = 1;
};
/// The device of one of several ranks. "cuda" and "emulated" give each rank of a machine a device of its own,
/// in their order, of those that this process is shown (CUDA_VISIBLE_DEVICES; TRIREME_EMULATED_DEVICES says
/// how many emulated ones there are, else 16). Throws invalid_argument where ranks outnumber devices;
/// "cuda:shared" and "emulated:shared" let them share. Any other name stands for itself, on every rank.
std::string device_of_rank(const std::string& name, LocalRank local);
/// The same as the launcher counts this process (comm::launched_rank()). A process that its launcher shows
/// one GPU takes that.
std::string device_of_rank(const std::string& name);
/// The same for a rank of `world`, whichever way it was started. Collective.
std::string device_of_rank(const std::string& name, comm::Communicator& world);
/// `name` with the word that lets ranks share devices.
std::string shared_device(const std::string& name);
/// Which kernels programs for the device of that name have; it need not be there. Throws invalid_argument
/// for a name that open_device() does not know.
tensor::DeviceKind kind_of_device(std::string_view name);

/// What is to be told, once, of what programs with these packs were to take from earlier runs and could not:
/// kept plans that are damaged, a directory that cannot be written. Empty: nothing.
std::string take_notice(base::SharedCache& packs);

}  // namespace trireme::runtime
