// The adapters of a served language model.
#include "serve/generative/served_adapters.h"

#include <algorithm>
#include <filesystem>

#include "base/files/directory.h"

namespace trireme::serve {

namespace fs = std::filesystem;

/// What stands in names of models, paths and metrics without more ado.
void ServedAdapters::check_name(const std::string& name) const {
  constexpr size_t kMostBytes = 128;
  const auto is_plain = [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '.';
  };
  base::require(!name.empty() && name.size() <= kMostBytes && name[0] != '.' &&
                    std::all_of(name.begin(), name.end(), is_plain),
                "'", name.substr(0, kMostBytes), "' is no name of an adapter: letters, digits, _, - and .");
}

void ServedAdapters::load_all(const std::string& directory) {
  std::error_code none;
  if (!fs::is_directory(directory, none)) return;
  std::error_code unread;
  for (const std::string& name : base::names_in(directory, unread)) {
    if (name[0] == '.' || !fs::is_directory(directory + "/" + name, none)) continue;
    try {
      load(name, directory + "/" + name);
    } catch (const base::Error& e) {
      throw e.with(base::concat("adapter '", name, "'"));
    }
  }
  if (unread) base::fail(base::ErrorCode::not_found, "'", directory, "' cannot be read: ", unread.message());
}

void ServedAdapters::load(const std::string& name, const std::string& directory) {
  check_name(name);
  const auto require_free = [&] {
    base::require(!adapters_.contains(name), "the adapter '", name, "' is loaded already");
  };
  {
    const std::lock_guard lock(mutex_);
    require_free();
  }
  std::shared_ptr<const engine::LoadedAdapter> made = slots_->load(directory);
  const std::lock_guard lock(mutex_);
  require_free();
  adapters_.emplace(name, std::move(made));
}

void ServedAdapters::unload(std::string_view name) {
  std::shared_ptr<const engine::LoadedAdapter> gone;  // let go of outside of the lock
  const std::lock_guard lock(mutex_);
  const auto at = adapters_.find(name);
  if (at == adapters_.end()) base::fail(base::ErrorCode::not_found, "there is no adapter '", name, "'");
  gone = std::move(at->second);
  adapters_.erase(at);
}

std::shared_ptr<const engine::LoadedAdapter> ServedAdapters::find(std::string_view name) const {
  const std::lock_guard lock(mutex_);
  const auto at = adapters_.find(name);
  return at == adapters_.end() ? nullptr : at->second;
}

std::string ServedAdapters::name_of(const engine::LoadedAdapter& adapter) const {
  const std::lock_guard lock(mutex_);
  for (const auto& [name, loaded] : adapters_) {
    if (loaded.get() == &adapter) return name;
  }
  return {};
}

std::vector<std::string> ServedAdapters::names() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> names;
  for (const auto& [name, adapter] : adapters_) names.push_back(name);
  return names;
}

size_t ServedAdapters::size() const {
  const std::lock_guard lock(mutex_);
  return adapters_.size();
}

}  // namespace trireme::serve
