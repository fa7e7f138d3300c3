// Leaves requests aside until another session has read their prompts.
#include "sched/text/parked_texts.h"

#include <algorithm>
#include <functional>
#include <new>

namespace trireme::sched {

using std::chrono::steady_clock;

ParkedTexts::ParkedTexts(std::shared_ptr<PageSource> source, const base::Clock& clock,
                         std::function<void()> wake)
    : source_(std::move(source)), clock_(clock), wake_(std::move(wake)) {}

std::shared_ptr<PageWish> ParkedTexts::make_wish(const TextRequest& request, engine::DecodeSession& session) {
  const engine::GenerateRequest& asked = request.generate;
  const PageWish::Form form{.first = session.beginnings().reach(asked.prompt, asked.origin()),
                            .page_tokens = session.options().page_tokens,
                            .page_bytes = session.ranks().page_bytes()};
  return std::make_shared<PageWish>(asked, request.standing.priority, form,
                                    [this, number = next_](Pages pages) {
                                      {
                                        const std::lock_guard lock(mutex_);
                                        arrived_.emplace_back(number, std::move(pages));
                                        has_news_ = true;
                                      }
                                      wake_();
                                    });
}

/// Until when it waits for its pages.
steady_clock::time_point ParkedTexts::latest_for(const TextRequest& request, int64_t now_ns) const {
  std::chrono::nanoseconds patience = source_->patience();
  // Half of a request's own time is left for computing here.
  if (const int64_t deadline_ns = request.standing.deadline_ns; deadline_ns != 0)
    patience = std::min(patience, std::chrono::nanoseconds((deadline_ns - now_ns) / 2));
  return steady_clock::now() + patience;
}

bool ParkedTexts::park(TextRequest& request, engine::DecodeSession& session) {
  const engine::GenerateRequest& asked = request.generate;
  if (source_ == nullptr || asked.scores_prompt || asked.taker != nullptr ||
      request.standing.priority == kBackground)
    return false;
  const int64_t now_ns = clock_.now_ns();
  const steady_clock::time_point late = latest_for(request, now_ns);
  for (auto& [number, parked] : parked_) {
    if (late < parked.late || !parked.wish->fits(asked)) continue;
    parked.requests.push_back(std::move(request));
    return true;
  }
  const std::shared_ptr<PageWish> wish = make_wish(request, session);
  if (wish->pages() <= 0 || !source_->ask(wish)) {
    wish->withdraw();
    return false;
  }
  Parked& parked = parked_[next_++];
  parked.wish = wish;
  parked.asked_ns = now_ns;
  parked.late = late;
  parked.requests.push_back(std::move(request));
  return true;
}

void ParkedTexts::release(std::map<int64_t, Parked>::iterator at, const Pages& handed,
                          std::vector<TextRequest>& to) {
  const int64_t now_ns = clock_.now_ns();
  to.reserve(to.size() + at->second.requests.size());  // without memory for that, nothing has changed
  for (TextRequest& request : at->second.requests) {
    request.generate.handed = handed;
    request.listener->on_pages(at->second.asked_ns, now_ns);
    to.push_back(std::move(request));
  }
  parked_.erase(at);
}

/// Those that nobody waits for any more go; the others stay.
void ParkedTexts::release_gone(Parked& parked, std::vector<TextRequest>& to) {
  const auto is_gone = [](const TextRequest& request) { return request.listener->is_gone(); };
  const auto gone =
      std::stable_partition(parked.requests.begin(), parked.requests.end(), std::not_fn(is_gone));
  to.reserve(to.size() + static_cast<size_t>(parked.requests.end() - gone));
  const int64_t now_ns = clock_.now_ns();
  for (auto request = gone; request != parked.requests.end(); ++request) {
    request->listener->on_pages(parked.asked_ns, now_ns);
    to.push_back(std::move(*request));
  }
  parked.requests.erase(gone, parked.requests.end());
}

std::vector<TextRequest> ParkedTexts::take() {
  std::vector<TextRequest> list;
  std::vector<std::pair<int64_t, Pages>> arrived;
  if (has_news()) {
    const std::lock_guard lock(mutex_);
    arrived.swap(arrived_);
    has_news_ = false;
  }
  try {
    for (const auto& [number, pages] : arrived) {
      if (const auto at = parked_.find(number); at != parked_.end()) release(at, pages, list);
    }
    const auto now = steady_clock::now();
    for (auto next = parked_.begin(); next != parked_.end();) {
      const auto at = next++;
      Parked& parked = at->second;
      release_gone(parked, list);
      const bool is_late = now >= parked.late, is_gone = parked.requests.empty();
      if (!is_late && !is_gone) continue;
      parked.wish->withdraw();
      if (is_late && !is_gone) source_->count_late();
      release(at, nullptr, list);
    }
  } catch (const std::bad_alloc&) {
    // The others stay until there is memory again; those whose pages had come are then late.
  }
  return list;
}

std::vector<TextRequest> ParkedTexts::give_up() {
  std::vector<TextRequest> list;
  while (!parked_.empty()) {
    parked_.begin()->second.wish->withdraw();
    release(parked_.begin(), nullptr, list);
  }
  return list;
}

size_t ParkedTexts::size() const {
  size_t count = 0;
  for (const auto& [number, parked] : parked_) count += parked.requests.size();
  return count;
}

}  // namespace trireme::sched
