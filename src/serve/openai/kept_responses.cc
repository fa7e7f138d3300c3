// Responses that the server stores for a limited time.
#include "serve/openai/kept_responses.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace trireme::serve {
namespace {

/// The size in memory, including the tables.
int64_t bytes_of(const KeptResponse& kept) {
  constexpr size_t kBeside = 512;
  return static_cast<int64_t>(kept.response.size() + kept.input.size() + kBeside);
}

}  // namespace

void KeptResponses::add(const std::string& id, const std::string& tenant, KeptResponse kept) {
  const int64_t bytes = bytes_of(kept);
  if (!is_on() || bytes > limits_.bytes) return;
  const std::lock_guard lock(mutex_);
  if (entries_.contains(id)) return;
  drop_old();
  make_room(bytes);
  base::MemoryLease room(base::MemoryUse::answers, 0);
  if (!room.try_resize(bytes)) return;
  const uint64_t number = ++next_;
  Tenant& of = tenants_[tenant];
  of.bytes += bytes;
  of.ids.emplace(number, id);
  by_age_.emplace(number, id);
  bytes_ += bytes;
  entries_.emplace(id, Entry{.tenant = tenant,
                             .kept = std::make_shared<const KeptResponse>(std::move(kept)),
                             .room = std::move(room),
                             .number = number,
                             .until_ns = clock_.now_ns() + limits_.ns});
}

std::shared_ptr<const KeptResponse> KeptResponses::find(std::string_view id, std::string_view tenant) {
  const std::lock_guard lock(mutex_);
  drop_old();
  return at(id, tenant)->second.kept;
}

void KeptResponses::remove(std::string_view id, std::string_view tenant) {
  const std::lock_guard lock(mutex_);
  drop_old();
  erase(at(id, tenant));
}

base::Json KeptResponses::conversation(std::string_view id, std::string_view tenant) {
  const std::shared_ptr<const KeptResponse> kept = find(id, tenant);
  base::Json items = base::parse_json(kept->input);
  const base::Json response = base::parse_json(kept->response);
  for (const base::Json& item : response.at("output").as_array()) items.push_back(item);
  return items;
}

int64_t KeptResponses::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

size_t KeptResponses::size() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

KeptResponses::Entries::iterator KeptResponses::at(std::string_view id, std::string_view tenant) {
  const auto found = entries_.find(std::string(id));
  if (found == entries_.end() || found->second.tenant != tenant)
    base::fail(base::ErrorCode::not_found, "Response with id '", id.substr(0, 80), "' not found.");
  return found;
}

void KeptResponses::erase(Entries::iterator entry) {
  const int64_t bytes = bytes_of(*entry->second.kept);
  const auto of = tenants_.find(entry->second.tenant);
  of->second.bytes -= bytes;
  of->second.ids.erase(entry->second.number);
  if (of->second.ids.empty()) tenants_.erase(of);
  by_age_.erase(entry->second.number);
  bytes_ -= bytes;
  entries_.erase(entry);
}

/// All responses are kept for the same time, so the oldest expire first.
void KeptResponses::drop_old() {
  const int64_t now_ns = clock_.now_ns();
  while (!by_age_.empty()) {
    const auto oldest = entries_.find(by_age_.begin()->second);
    if (oldest->second.until_ns > now_ns) return;
    erase(oldest);
  }
}

/// Evicts the oldest response of the tenant that uses most, so that no tenant evicts another's.
void KeptResponses::make_room(int64_t bytes) {
  while (!entries_.empty() &&
         (bytes_ + bytes > limits_.bytes || static_cast<int64_t>(entries_.size()) >= limits_.responses)) {
    const auto most = std::max_element(tenants_.begin(), tenants_.end(), [](const auto& a, const auto& b) {
      return a.second.bytes < b.second.bytes;
    });
    erase(entries_.find(most->second.ids.begin()->second));
  }
}

}  // namespace trireme::serve
