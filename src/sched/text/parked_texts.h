// Requests of a text service that wait for another session to read their prompts.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "engine/decode/decode_session.h"
#include "sched/text/page_wish.h"
#include "sched/text/text_request.h"

namespace trireme::sched {

/// They are not in the queue: others pass them. Of the service's thread, unless said otherwise.
class ParkedTexts {
 public:
  /// `source` null: nobody is asked. `wake` is called from any thread when there are news.
  ParkedTexts(std::shared_ptr<PageSource> source, const base::Clock& clock, std::function<void()> wake);
  ~ParkedTexts() { give_up(); }
  ParkedTexts(const ParkedTexts&) = delete;
  ParkedTexts& operator=(const ParkedTexts&) = delete;

  /// Leaves a request aside, and has the pages of its prompt computed elsewhere that `session` does not know.
  /// False: it had better be computed here. Requests with the same full pages are asked for once, unless one
  /// that comes later cannot wait as long.
  bool park(TextRequest& request, engine::DecodeSession& session);
  /// Requests that go on now: their pages have come, or come no more; and those that nobody waits for.
  std::vector<TextRequest> take();
  /// All requests; nobody is waited for any more.
  std::vector<TextRequest> give_up();
  bool empty() const { return parked_.empty(); }
  size_t size() const;
  /// Any thread.
  bool has_news() const { return has_news_.load(); }

 private:
  struct Parked {
    std::shared_ptr<PageWish> wish;
    std::chrono::steady_clock::time_point late{};
    int64_t asked_ns = 0;
    std::vector<TextRequest> requests = {};
  };
  using Pages = std::shared_ptr<const engine::HandedPages>;
  std::shared_ptr<PageWish> make_wish(const TextRequest& request, engine::DecodeSession& session);
  std::chrono::steady_clock::time_point latest_for(const TextRequest& request, int64_t now_ns) const;
  void release(std::map<int64_t, Parked>::iterator at, const Pages& handed, std::vector<TextRequest>& to);
  void release_gone(Parked& parked, std::vector<TextRequest>& to);

  const std::shared_ptr<PageSource> source_;
  const base::Clock& clock_;
  const std::function<void()> wake_;
  std::map<int64_t, Parked> parked_;
  int64_t next_ = 0;
  std::atomic<bool> has_news_{false};
  std::mutex mutex_;                                // of what follows
  std::vector<std::pair<int64_t, Pages>> arrived_;  // by `parked_`
};

}  // namespace trireme::sched
