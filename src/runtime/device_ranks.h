// Ranks that have devices: the stream on which they meet beside the computation, their groups on device
// memory, and the watch over work that nobody on the host waits in.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "backend/cuda/device/cuda_device.h"
#include "comm/device_group.h"
#include "comm/mesh.h"

namespace trireme::runtime {

/// How the ranks of a job exchange device memory, decided alike by all.
struct DeviceLinkChoice {
  comm::DeviceLink link = comm::DeviceLink::staged;
  std::string why;
};
/// Collective: calls where host code reaches the memory; NCCL where this program has it and no two ranks
/// share a GPU; else staged. TRIREME_DEVICE_LINK=staged asks for the last.
DeviceLinkChoice choose_link(comm::Communicator& world, cuda::CudaDevice& device);

/// Opens the group of a host's group as the choice says.
std::unique_ptr<comm::DeviceGroup> open_device_group(comm::DeviceLink link, comm::Communicator& host,
                                                     cuda::CudaDevice& device, tensor::Stream& stream);

/// Waits for what is queued on the stream of a group; where only the device waits for other ranks (NCCL), no
/// longer than the group's deadline. Throws unavailable with rank and collective then; the group is gone.
void wait_for_ranks(cuda::CudaStream& stream, comm::DeviceGroup& group, comm::DeviceLink link);

struct DeviceRanksOptions {
  /// How long a run may wait for other ranks where only the device waits (NCCL); 0: as long as the world's
  /// deadline says.
  int64_t deadline_ns = 0;
};

/// Of one rank, shared by all its programs on one device. Used by the rank's owner thread.
class DeviceRanks {
 public:
  /// Collective over the host's world. `host` and `device` outlive this.
  DeviceRanks(comm::Mesh& host, cuda::CudaDevice& device, DeviceRanksOptions options = {});
  ~DeviceRanks();
  DeviceRanks(const DeviceRanks&) = delete;
  DeviceRanks& operator=(const DeviceRanks&) = delete;

  /// Groups on device memory, which queue their work on stream().
  comm::Mesh& mesh() { return *mesh_; }
  cuda::CudaStream& stream() { return *stream_; }
  const DeviceLinkChoice& choice() const { return choice_; }
  /// Whether programs that meet ranks can be recorded.
  bool can_record() const { return choice_.link != comm::DeviceLink::staged; }

  /// Around a run of `program`, between which the watch looks at the groups.
  void begin(const std::string& program);
  /// Throws unavailable with what the watch found: rank, collective and layer. The groups are gone then.
  void end();

 private:
  struct Watch;
  DeviceRanksOptions options_;
  DeviceLinkChoice choice_;
  base::ThreadPool pool_{1};
  std::unique_ptr<cuda::CudaStream> stream_;
  std::unique_ptr<Watch> watch_;
  std::unique_ptr<comm::Mesh> mesh_;
};

}  // namespace trireme::runtime
