// Ranks with a device each: the same collectives on device memory, in the order of a stream.
#pragma once

#include <memory>
#include <string>

#include "comm/communicator.h"
#include "tensor/device.h"

namespace trireme::comm {

/// How device memory gets from rank to rank. calls: the host's communicator reads and writes it, in stream
/// order (the stand-in's memory is the host's). nccl: GPUs among themselves. staged: through pinned memory of
/// the host, which the caller waits for.
enum class DeviceLink : uint8_t { calls, nccl, staged };
std::string_view to_string(DeviceLink link);

/// A communicator whose spans are device memory: a call queues its work on the group's stream and returns;
/// later work on the stream sees the result. Calls are made by one thread.
class DeviceGroup : public Communicator {
 public:
  /// Whether launches that contain its calls can be recorded and replayed.
  virtual bool can_record() const = 0;
  /// What the network found wrong with work that is under way; empty: nothing. From any thread.
  virtual std::string trouble() { return {}; }
  /// Ends what is under way here, so that the stream goes on; nothing works afterwards. From any thread.
  virtual void abort() {}
};

/// Collective over `host`, of which it makes a group of its own; the stream outlives it. Every call becomes
/// one of the host's communicator when the stream comes to it, watched as those are; what goes wrong there is
/// thrown where the stream is waited for. Throws unsupported for a stream without calls: a GPU's.
std::unique_ptr<DeviceGroup> open_calls(Communicator& host, tensor::Stream& stream);

/// The same for any device, also where ranks share one: each call waits for the stream, copies to the host,
/// asks the host's communicator and copies back.
std::unique_ptr<DeviceGroup> open_staged(Communicator& host, tensor::Device& device, tensor::Stream& stream);

/// The call once more, on another communicator of the same ranks and other memory.
void repeat(Communicator& on, const Call& call, ConstBytes in, Bytes out);

}  // namespace trireme::comm
