// Keeps versions of models that were replaced or unloaded, as long as they are needed.
#include "serve/repository/old_versions.h"

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

namespace trireme::serve {
namespace {

/// Waits until only `own` references are left, and makes all that their users did visible here.
void wait_for_users(const std::shared_ptr<ServedModel>& model, long own) {
  while (model.use_count() > own) std::this_thread::sleep_for(std::chrono::microseconds(100));
  std::atomic_thread_fence(std::memory_order_acquire);
}

}  // namespace

void OldVersions::retire(Models old) {
  for (std::shared_ptr<ServedModel>& model : old) {
    wait_for_users(model, 1);
    model->drain();
    model.reset();
  }
  malloc_trim(0);  // the allocator keeps freed memory; other programs may need it
}

void OldVersions::keep(const std::string& name, std::shared_ptr<ServedModel> old,
                       const std::shared_ptr<ServedModel>& follower) {
  kept_.push_back({name, std::move(old), follower});
}

bool OldVersions::may_go(const Kept& kept, const std::string& cut) const {
  constexpr int64_t kMost = 4;
  const auto of_name =
      std::count_if(kept_.begin(), kept_.end(), [&](const Kept& other) { return other.name == kept.name; });
  if (kept.name == cut || of_name > kMost) return true;
  // Besides its follower and this list, only requests that found it before the change use it, for a moment.
  wait_for_users(kept.old, 2);
  return !kept.old->is_needed();
}

void OldVersions::retire_ended(const std::string& cut) {
  for (size_t i = 0; i < kept_.size();) {
    if (!may_go(kept_[i], cut)) {
      ++i;
      continue;
    }
    if (const auto follower = kept_[i].follower.lock()) follower->let_go_of_earlier();
    Models gone;
    gone.push_back(std::move(kept_[i].old));
    kept_.erase(kept_.begin() + static_cast<std::ptrdiff_t>(i));
    retire(std::move(gone));
  }
}

void OldVersions::drain() {
  for (const Kept& kept : kept_) kept.old->drain();
}

void OldVersions::stop() {
  for (const Kept& kept : kept_) kept.old->stop();
}

}  // namespace trireme::serve
