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

/// A step of a language model that hangs cannot be ended, and its texts are told of nothing before it is
/// through. Requests to other models are failed when their run hangs.
bool hangs(ServedModel& model) { return model.texts() != nullptr && !model.is_well(); }

/// Waits until only `own` references are left, and makes all that their users did visible here. False where
/// it hangs meanwhile.
bool wait_for_users(const std::shared_ptr<ServedModel>& model, long own) {
  while (model.use_count() > own) {
    if (hangs(*model)) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  std::atomic_thread_fence(std::memory_order_acquire);
  return true;
}

}  // namespace

bool OldVersions::retire(Models old) {
  bool have_ended = true;
  for (std::shared_ptr<ServedModel>& model : old) {
    bool has_ended = wait_for_users(model, 1);
    if (has_ended) {
      model->drain();
      has_ended = !hangs(*model);
    }
    if (!has_ended) hung_.push_back(model);
    model.reset();
    have_ended = have_ended && has_ended;
  }
  malloc_trim(0);  // the allocator keeps freed memory; other programs may need it
  return have_ended;
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
  return wait_for_users(kept.old, 2) && !kept.old->is_needed();
}

void OldVersions::retire_hung() {
  Models through, others;
  for (std::shared_ptr<ServedModel>& model : hung_) {
    const bool is_through = !hangs(*model) && model.use_count() == 1;
    (is_through ? through : others).push_back(std::move(model));
  }
  hung_ = std::move(others);
  if (!through.empty()) retire(std::move(through));
}

void OldVersions::retire_ended(const std::string& cut) {
  retire_hung();
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
  for (const std::shared_ptr<ServedModel>& model : hung_) model->drain();
}

void OldVersions::stop() {
  for (const Kept& kept : kept_) kept.old->stop();
  for (const std::shared_ptr<ServedModel>& model : hung_) model->stop();
}

}  // namespace trireme::serve
