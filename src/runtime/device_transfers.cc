// Transfers inputs and results of a program to and from a device.
#include "runtime/device_transfers.h"

#include <algorithm>

namespace trireme::runtime {
namespace {

bool is_there(const std::vector<bool>& there, size_t i) { return i < there.size() && there[i]; }

}  // namespace

DeviceTransfers::DeviceTransfers(const compile::Program& program, const DeviceBinding& on)
    : on_(on),
      in_(lay_out(program, program.inputs, on.inputs_there, aligned_for_device(program.memory.arena_bytes))),
      out_(lay_out(program, program.outputs, on.outputs_there, in_.at + in_.bytes)) {
  on_.staging->reserve(std::max(in_.staged_bytes, out_.staged_bytes), 0);
}

DeviceTransfers::Region DeviceTransfers::lay_out(const compile::Program& program,
                                                 const std::vector<compile::SlotId>& slots,
                                                 const std::vector<bool>& there, int64_t at) {
  Region region;
  region.at = at;
  region.parts.resize(slots.size());
  for (const bool wanted : {false, true}) {
    for (size_t i = 0; i < slots.size(); ++i) {
      if (is_there(there, i) != wanted) continue;
      const int64_t bytes = program.slot(slots[i]).bytes;
      region.parts[i] = {.host = nullptr, .offset = region.bytes, .bytes = bytes};
      region.bytes += aligned_for_device(bytes);
    }
    if (!wanted) region.staged_bytes = region.bytes;
  }
  for (size_t i = 0; i < slots.size(); ++i) {
    if (!is_there(there, i)) region.staged.push_back(region.parts[i]);
  }
  return region;
}

void DeviceTransfers::take(std::span<const void* const> inputs, std::span<void* const> outputs) {
  for (size_t i = 0, k = 0; i < in_.parts.size(); ++i) {
    if (!is_there(on_.inputs_there, i))
      in_.staged[k++].host = static_cast<std::byte*>(const_cast<void*>(inputs[i]));
  }
  for (size_t i = 0, k = 0; i < out_.parts.size(); ++i) {
    if (!is_there(on_.outputs_there, i)) out_.staged[k++].host = static_cast<std::byte*>(outputs[i]);
  }
}

void DeviceTransfers::send(std::span<const void* const> inputs, tensor::Stream& stream, size_t turn) {
  on_.staging->upload(arena_ + in_.at, in_.staged, in_.staged_bytes, stream, turn);
  for (size_t i = 0; i < on_.inputs_there.size(); ++i) {
    if (on_.inputs_there[i]) stream.copy(input(i), inputs[i], in_.parts[i].bytes);
  }
}

void DeviceTransfers::fetch(std::span<void* const> outputs, tensor::Stream& stream) {
  on_.staging->fetch(arena_ + out_.at, out_.staged_bytes, stream);
  for (size_t i = 0; i < on_.outputs_there.size(); ++i) {
    if (on_.outputs_there[i]) stream.copy(outputs[i], output(i), out_.parts[i].bytes);
  }
}

void DeviceTransfers::deliver() { on_.staging->deliver(arena_ + out_.at, out_.staged, out_.staged_bytes); }

}  // namespace trireme::runtime
