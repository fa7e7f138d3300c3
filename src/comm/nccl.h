// Ranks with a GPU each: the same collectives on device memory, over NCCL.
#pragma once

#include <algorithm>
#include <memory>

#include "base/clock.h"
#include "comm/device_group.h"

namespace trireme::comm {

/// tree: the order of Communicator, equal bits on any machine. library: whatever NCCL chooses for size and
/// wiring; faster on large groups, other bits.
enum class DeviceOrder { tree, library };

/// Whether this program was built with NCCL's interface. NCCL itself is loaded when it is first needed.
bool has_nccl();
/// How long ranks wait for each other while they open a group of a world with this deadline; 0: for ever. A
/// rank reads NCCL's kernels and connects to the others meanwhile, which takes seconds: a deadline for
/// collectives says nothing of that.
constexpr int64_t opening_deadline_ns(int64_t deadline_ns) {
  return deadline_ns > 0 ? std::max(deadline_ns, 60 * base::kNsPerSecond) : 0;
}
/// Why NCCL cannot be used here; empty: its library loads.
std::string nccl_refusal();

/// A communicator of the ranks of `host` on the GPUs of their streams. Collective over `host`, which carries
/// what ranks agree on and watches for those that do not come; `host` and `stream` outlive it. Called on the
/// thread that opened the stream.
///
/// A call meets the other ranks on the host, queues its work on `stream` and returns; flights end when the
/// work is queued. barrier() also waits for the stream. A failure of the network shows in trouble(), and as
/// unavailable at a later call. In a recording only NCCL's work is written down: replays do not meet on the
/// host. Calls that are recorded were made before with the same sizes, so that scratch memory is there.
///
/// NCCL's calls do not block (TRIREME_NCCL_BLOCKING=1: they do). A call that has to wait for another rank
/// before it is queued gives the group up at the world's deadline, opening a group at opening_deadline_ns():
/// unavailable, naming rank and collective. What waits on the device is the caller's to watch: trouble() and
/// abort().
///
/// Throws unsupported in a program built without NCCL; unavailable where its library is missing, or GPU and
/// network refuse; invalid_argument for two ranks with one GPU, naming them.
std::unique_ptr<DeviceGroup> open_nccl(Communicator& host, tensor::Stream& stream,
                                       DeviceOrder order = DeviceOrder::tree);

}  // namespace trireme::comm
