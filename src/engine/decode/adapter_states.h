// Memory of a device for the adapters of a language model: the states that adapter_linear reads.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/decode/adapter_slots.h"
#include "passes/decode/decode.h"
#include "tensor/device.h"

namespace trireme::engine {

/// Memory that room for adapters takes.
int64_t adapter_room_bytes(const passes::AdapterRoom& room);

/// One owner thread. What is allocated is for all slots at the largest rank; no adapter changes it.
class AdapterStates {
 public:
  /// Throws exhausted, naming the bytes, if the device has no room.
  AdapterStates(tensor::Device& device, const passes::AdapterRoom& room, tensor::Stream& stream);

  /// The state of that name, or null.
  void* find(const std::string& state) const;
  /// The adapter's slot holds it from now on; modules that it leaves out add nothing. In stream order, and
  /// not before what is under way has ended.
  void use(const LoadedAdapter& adapter, tensor::Stream& stream);

 private:
  void write(const LoadedAdapter& adapter, tensor::Stream& stream);
  float* factor(const std::string& state) const { return static_cast<float*>(find(state)); }

  passes::AdapterRoom room_;
  std::shared_ptr<void> memory_;
  std::map<std::string, int64_t> offsets_;  ///< by name
  std::vector<int32_t> numbers_;            ///< by slot: of the adapter that is there; -1: none
};

}  // namespace trireme::engine
