// Who runs and who waits among the texts of a language model.
#include "sched/token_scheduler.h"

#include <algorithm>

namespace trireme::sched {

using engine::FinishReason;
using engine::GenerateEvent;

int64_t TokenScheduler::add(engine::GenerateRequest request) {
  const int64_t pages = generator_.check(request);
  waiting_.push_back({.number = next_, .request = std::move(request), .pages = pages});
  return next_++;
}

void TokenScheduler::cancel(int64_t request) {
  // Numbers only grow towards the end of the queue.
  const auto at = std::lower_bound(waiting_.begin(), waiting_.end(), request,
                                   [](const Waiting& w, int64_t number) { return w.number < number; });
  if (at != waiting_.end() && at->number == request) {
    at->is_cancelled = true;
  } else {
    generator_.cancel(request);
  }
}

/// Whether there are pages for all that a request may need.
bool TokenScheduler::fits(const Waiting& first) {
  const uint64_t changes = generator_.page_changes();
  const int64_t reserved = generator_.reserved_pages();
  if (refused_.number == first.number && refused_.changes == changes && refused_.reserved == reserved)
    return false;
  const engine::DecodeSession::Beginning found = generator_.look(first.request.prompt);
  const int64_t shared = found.tokens / generator_.options().page_tokens;
  if (first.pages - shared <= found.free_pages - reserved) return true;
  refused_ = {.number = first.number, .reserved = reserved, .changes = changes};
  return false;
}

/// Requests that have waited longest get places and pages.
void TokenScheduler::admit() {
  const engine::DecodeOptions& options = generator_.options();
  while (!waiting_.empty()) {
    Waiting& first = waiting_.front();
    if (first.is_cancelled) {
      events_.push_back({.request = first.number, .finish = FinishReason::cancelled});
    } else {
      const auto running = static_cast<int64_t>(generator_.size());
      if (running >= std::min(options.max_sequences, options.max_tokens) || !fits(first)) return;
      const auto whole = static_cast<int64_t>(first.request.prompt.size());
      generator_.start(first.number, std::move(first.request), first.pages);
      shared_tokens_ += whole - generator_.prompt_left(generator_.size() - 1);
    }
    waiting_.pop_front();
  }
}

/// Launches the next step, if there is one.
bool TokenScheduler::launch() {
  admit();
  int64_t left = generator_.options().max_tokens;
  for (size_t i = 0; i < generator_.size(); ++i) left -= generator_.prompt_left(i) == 0 ? 1 : 0;
  tokens_.assign(generator_.size(), 0);
  for (size_t i = 0; i < generator_.size(); ++i) {
    const int64_t prompt = generator_.prompt_left(i);
    if (prompt == 0) {
      tokens_[i] = generator_.can_draw(i) ? 1 : 0;
    } else {
      tokens_[i] = std::min(prompt, left);
      left -= tokens_[i];
    }
  }
  return generator_.launch(tokens_);
}

const std::vector<GenerateEvent>& TokenScheduler::step() {
  events_.clear();
  generator_.clean(events_);
  step_tokens_ = 0;
  while (generator_.can_launch() && launch()) {
  }
  if (generator_.is_launched()) step_tokens_ = generator_.collect(events_);
  return events_;
}

}  // namespace trireme::sched
