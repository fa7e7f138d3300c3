// The adapters of a served language model, by the names that requests use.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "engine/decode/adapter_slots.h"

namespace trireme::serve {

/// Any thread. Unloading takes a name away at once; texts that began with the adapter end with it, and only
/// then its slot is free.
class ServedAdapters {
 public:
  explicit ServedAdapters(std::shared_ptr<engine::AdapterSlots> slots) : slots_(std::move(slots)) {}

  /// Loads every directory in `directory`, which may lack, under its own name. Throws the first one's error.
  void load_all(const std::string& directory);
  /// Throws invalid_argument for a name that is taken or is none, and what AdapterSlots::load() throws.
  void load(const std::string& name, const std::string& directory);
  /// Throws not_found.
  void unload(std::string_view name);
  /// Null: there is none of that name.
  std::shared_ptr<const engine::LoadedAdapter> find(std::string_view name) const;
  /// Empty: it has none any more.
  std::string name_of(const engine::LoadedAdapter& adapter) const;
  std::vector<std::string> names() const;
  size_t size() const;
  bool has_room() const { return slots_->slots() > 0; }

 private:
  void check_name(const std::string& name) const;

  const std::shared_ptr<engine::AdapterSlots> slots_;
  mutable std::mutex mutex_;
  std::map<std::string, std::shared_ptr<const engine::LoadedAdapter>, std::less<>> adapters_;
};

}  // namespace trireme::serve
