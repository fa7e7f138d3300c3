// Memory of a device for the adapters of a language model: the states that adapter_linear reads.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/decode/decode_model.h"
#include "lower/step_options.h"
#include "model/hf/adapter.h"
#include "tensor/device.h"

namespace trireme::engine {

/// Memory that room for adapters takes on rank `rank` of the model's ranks: it holds factors of the modules
/// of its stage, split as DecodeModel::placed() says.
int64_t adapter_room_bytes(const DecodeModel& model, int rank);

/// What an adapter adds to one module, whole, in f32: y += (x down') up.
struct AdapterFactors {
  int64_t rank = 0;           ///< 0: nothing
  std::vector<float> values;  ///< down [rank, in], and behind it up [rank, out], the adapter's scale in it

  /// `part`: of the module; null: the adapter leaves it out.
  static AdapterFactors of(const model::hf::AdapterPart* part);
};

/// One owner thread. What is allocated is for all slots at the largest rank; no adapter changes it.
class AdapterStates {
 public:
  /// Of rank `rank` of the ranks of `model`, which has room for adapters and outlives this. Throws exhausted,
  /// naming the bytes, if the device has no room.
  AdapterStates(tensor::Device& device, const DecodeModel& model, int rank, tensor::Stream& stream);

  /// The state of that name, or null.
  void* find(const std::string& state) const;
  /// The slot's adapter adds this to the module from now on, of which this rank keeps its part; nothing
  /// happens where the module is another stage's. In stream order, and not before what is under way has
  /// ended.
  void write(const passes::AdapterModule& module, int64_t slot, const AdapterFactors& factors,
             tensor::Stream& stream);

 private:
  void write_columns(const std::string& state, int64_t slot, int64_t rank, std::span<const float> columns,
                     tensor::Stream& stream);

  const DecodeModel& model_;
  const lower::RankPlace place_;
  std::shared_ptr<void> memory_;
  std::map<std::string, int64_t> offsets_;  ///< by name
};

}  // namespace trireme::engine
