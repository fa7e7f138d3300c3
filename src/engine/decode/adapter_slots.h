// The adapters that a language model may be asked for: read, checked, and each given a slot.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/pages/page_names.h"
#include "model/hf/adapter.h"
#include "passes/decode/decode.h"

namespace trireme::engine {

class AdapterSlots;

/// An adapter with a slot of its own. Texts that use it hold it; the slot is free again once nobody does.
class LoadedAdapter {
 public:
  LoadedAdapter(std::shared_ptr<AdapterSlots> home, int32_t slot, int32_t number, model::hf::Adapter weights);
  ~LoadedAdapter();
  LoadedAdapter(const LoadedAdapter&) = delete;
  LoadedAdapter& operator=(const LoadedAdapter&) = delete;

  int32_t slot() const { return slot_; }
  /// Of all adapters that ever had a slot here: tells those of one slot apart.
  int32_t number() const { return number_; }
  const model::hf::Adapter& weights() const { return weights_; }
  /// Of its weights: adapters with the same ones give texts the same keys and values.
  const PageId& fingerprint() const { return fingerprint_; }

 private:
  const std::shared_ptr<AdapterSlots> home_;
  const int32_t slot_, number_;
  const model::hf::Adapter weights_;
  const PageId fingerprint_;
};

/// Any thread.
class AdapterSlots : public std::enable_shared_from_this<AdapterSlots> {
 public:
  /// `base`: Model::config of the model.
  static std::shared_ptr<AdapterSlots> make(const passes::AdapterRoom& room, base::Json base);

  /// Reads a directory and checks it against the model; a session writes the weights to the device when a
  /// text first uses them. The files may change then. Throws what model::read_adapter() throws,
  /// invalid_argument for a rank above the room's, exhausted where no slot is free, unsupported where the
  /// model has no room for adapters.
  std::shared_ptr<const LoadedAdapter> load(const std::string& directory);
  int64_t slots() const { return static_cast<int64_t>(is_taken_.size()); }

 private:
  friend class LoadedAdapter;
  AdapterSlots(const passes::AdapterRoom& room, base::Json base);
  void release(int32_t slot);

  const int64_t most_rank_;
  const base::Json base_;
  model::hf::ModuleSizes modules_;
  std::mutex mutex_;  // of what follows
  std::vector<bool> is_taken_;
  int32_t next_number_ = 0;
};

}  // namespace trireme::engine
