// Ranks with a GPU each: the same collectives on device memory, over NCCL.
#pragma once

#include <memory>

#include "comm/communicator.h"
#include "tensor/device.h"

namespace trireme::comm {

/// tree: the order of Communicator, equal bits on any machine. library: whatever NCCL chooses for size and
/// wiring; faster on large groups, other bits.
enum class DeviceOrder { tree, library };

/// Whether this program was built with NCCL's interface. NCCL itself is loaded when it is first needed.
bool has_nccl();

/// A communicator of the ranks of `host` on the GPUs of their streams. Collective over `host`, which carries
/// what ranks agree on and watches for those that do not come; `host` and `stream` outlive it. Called on the
/// thread that opened the stream.
///
/// Spans are device memory. A call meets the other ranks on the host, queues its work on `stream` and
/// returns: later work on the stream sees the result; flights end when the work is queued. barrier() also
/// waits for the stream. A failure of the network shows as unavailable at a later call.
///
/// Throws unsupported in a program built without NCCL; unavailable where its library is missing, or GPU and
/// network refuse.
std::unique_ptr<Communicator> open_nccl(Communicator& host, tensor::Stream& stream,
                                        DeviceOrder order = DeviceOrder::tree);

}  // namespace trireme::comm
