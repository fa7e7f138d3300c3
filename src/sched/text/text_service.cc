// A language model that answers requests of any thread.
#include "sched/text/text_service.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <new>
#include <utility>

#include "base/threads/this_thread.h"
#include "sched/current_error.h"

namespace trireme::sched {

using engine::FinishReason;
using engine::GenerateEvent;

TextService::TextService(MakeSession make, Options options, const base::Clock& clock)
    : make_(std::move(make)),
      options_(std::move(options)),
      clock_(clock),
      parked_(options_.pages, clock, [this] {
        { const std::lock_guard lock(mutex_); }  // between a look and a wait nothing comes unseen
        changed_.notify_all();
      }) {
  open();
  limits_ = scheduler_->limits();
  thread_ = std::thread([this] { run(); });
}

TextService::~TextService() { stop(); }

void TextService::open() {
  engine_.session = make_();
  if (options_.make_drafter) engine_.drafter = options_.make_drafter();
  scheduler_ =
      std::make_unique<TokenScheduler>(*engine_.session, TextSchedule{.clock = &clock_,
                                                                      .drafter = engine_.drafter.get(),
                                                                      .draft_tokens = options_.draft_tokens,
                                                                      .goals = options_.goals});
  shown_.memory_bytes = engine_.session->pool().bytes() + engine_.session->ranks().first().arena_bytes() +
                        (engine_.drafter ? engine_.drafter->memory_bytes() : 0);
}

namespace {

size_t count_clients(const std::vector<TextRequest>& requests) {
  return static_cast<size_t>(std::count_if(requests.begin(), requests.end(), [](const TextRequest& r) {
    return r.standing.priority != kBackground;
  }));
}

}  // namespace

void TextService::submit(TextRequest request) {
  std::vector<TextRequest> one;
  one.push_back(std::move(request));
  submit_all(std::move(one));
}

void TextService::submit_all(std::vector<TextRequest> requests) {
  for (TextRequest& r : requests) limits_.check(r.generate);
  const size_t clients = count_clients(requests), most = options_.max_waiting;
  base::require(clients <= std::max<size_t>(most, 1), clients, " answers are asked for, and at most ", most,
                " may wait");
  {
    const std::lock_guard lock(mutex_);
    if (inbox_.is_closed) base::fail(base::ErrorCode::unavailable, "the model is shutting down");
    if (clients > 0 && inbox_.waiting + clients > most)
      base::fail(base::ErrorCode::exhausted, "too many requests wait: ", inbox_.waiting);
    inbox_.requests.insert(inbox_.requests.end(), std::make_move_iterator(requests.begin()),
                           std::make_move_iterator(requests.end()));
    shown_.under_way += requests.size();
    inbox_.waiting += clients;
    inbox_.is_idle = false;
  }
  changed_.notify_all();
}

TextStats TextService::stats() const {
  TextStats stats = shown_.stats.copy();
  stats.under_way = shown_.under_way.load();
  return stats;
}

int64_t TextService::step_ns() const {
  const int64_t began = shown_.step_began_ns.load();
  return began == 0 ? 0 : clock_.now_ns() - began;
}

namespace {

/// False where it is not done within `patience_ns`; INT64_MAX: that takes as long as it takes.
template <class IsDone>
bool wait_done(std::condition_variable& changed, std::unique_lock<std::mutex>& lock, int64_t patience_ns,
               const IsDone& is_done) {
  if (patience_ns != INT64_MAX) return changed.wait_for(lock, std::chrono::nanoseconds(patience_ns), is_done);
  changed.wait(lock, is_done);
  return true;
}

}  // namespace

bool TextService::drain(int64_t patience_ns) {
  std::unique_lock lock(mutex_);
  inbox_.is_closed = true;
  return wait_done(changed_, lock, patience_ns, [this] { return inbox_.is_idle || inbox_.has_ended; });
}

bool TextService::stop(int64_t patience_ns) {
  {
    std::unique_lock lock(mutex_);
    inbox_.is_closed = inbox_.is_stopping = true;
    changed_.notify_all();
    if (!wait_done(changed_, lock, patience_ns, [this] { return inbox_.has_ended; })) return false;
  }
  if (thread_.joinable()) thread_.join();
  return true;
}

/// Waits where there is nothing to do and takes what came. False: the thread ends.
bool TextService::take_in() {
  constexpr std::chrono::milliseconds kLook{20};  // at requests that are parked
  std::vector<TextRequest> requests;
  {
    std::unique_lock lock(mutex_);
    const bool is_idle = !has_steps() && parked_.empty();
    if (is_idle && inbox_.requests.empty() && !inbox_.is_idle) {
      inbox_.is_idle = true;
      changed_.notify_all();
    }
    const auto has_news = [this] {
      return inbox_.is_stopping || !inbox_.requests.empty() || parked_.has_news() || has_steps();
    };
    if (parked_.empty()) {
      changed_.wait(lock, has_news);
    } else {
      changed_.wait_for(lock, kLook, has_news);
    }
    requests.swap(inbox_.requests);
    if (inbox_.is_stopping) {
      lock.unlock();
      const base::Error over(base::ErrorCode::unavailable, "the model is shutting down");
      for (TextRequest& r : parked_.give_up()) requests.push_back(std::move(r));
      shown_.under_way -= requests.size();
      for (TextRequest& r : requests) r.listener->on_error(over);
      fail_all(over);
      return false;
    }
  }
  for (TextRequest& r : parked_.take()) add(std::move(r));
  for (TextRequest& r : requests) {
    bool is_parked = false;
    try {
      is_parked = scheduler_ && parked_.park(r, *engine_.session);
    } catch (const std::bad_alloc&) {
      // Computed here; the request is moved only once there is room for it.
    }
    if (!is_parked) add(std::move(r));
  }
  return true;
}

void TextService::add(TextRequest request) {
  try {
    if (!scheduler_) open();
    const int64_t number = scheduler_->add(std::move(request.generate), request.standing);
    live_.emplace(number, Live{request.listener});
  } catch (const std::exception&) {
    --shown_.under_way;
    request.listener->on_error(current_error());
  }
}

/// Ends what nobody waits for: of those that run all are asked, of those that wait some at a time.
void TextService::drop_gone() {
  constexpr int kSome = 256;
  for (int64_t number : asked_.begun) {
    if (live_.at(number).listener->is_gone()) scheduler_->cancel(number);
  }
  auto at = live_.upper_bound(asked_.looked);
  for (int i = 0; i < kSome && at != live_.end(); ++i, ++at) {
    asked_.looked = at->first;
    if (!at->second.is_begun && at->second.listener->is_gone()) scheduler_->cancel(at->first);
  }
  if (at == live_.end()) asked_.looked = -1;
}

namespace {

/// What a listener throws ends its own request and no other; false where it does.
template <class Tell>
bool guard(TextListener& listener, const Tell& tell) {
  try {
    tell();
    return true;
  } catch (const std::exception&) {
    listener.on_error(current_error());
    return false;
  }
}

}  // namespace

void TextService::tell(const GenerateEvent& event) {
  const auto at = live_.find(event.request);
  if (at == live_.end()) return;  // its listener has had enough
  const std::shared_ptr<TextListener> listener = at->second.listener;
  const bool is_over = event.finish != FinishReason::none;
  bool goes_on = true;
  if (event.token >= 0 || !event.prompt.empty()) {
    const bool is_well = guard(*listener, [&] { goes_on = listener->on_token(event); });
    goes_on = goes_on && is_well;
  }
  if (goes_on && !is_over) return;
  end(event.request, !is_over);
  if (!goes_on) return;
  guard(*listener,
        [&] { event.error != nullptr ? listener->on_error(*event.error) : listener->on_end(event.finish); });
}

/// A request is told nothing more; `cancels`: it still runs.
void TextService::end(int64_t number, bool cancels) {
  if (cancels) scheduler_->cancel(number);
  shown_.under_way -= live_.erase(number);
  asked_.begun.erase(number);
}

void TextService::step() {
  const int64_t began_ns = clock_.now_ns();
  shown_.step_began_ns = began_ns;
  const std::vector<GenerateEvent>& events = scheduler_->step(began_ns);
  shown_.step_began_ns = 0;
  counts_.busy_ns += clock_.now_ns() - began_ns;
  ++counts_.steps;
  counts_.step_tokens += scheduler_->step_tokens();
  for (const TokenScheduler::Begun& begun : scheduler_->begun()) {
    counts_.known_tokens += begun.known_tokens;
    counts_.prompt_tokens += begun.prompt_tokens;
    counts_.handed_tokens += begun.handed_tokens;
  }
  for (const GenerateEvent& event : events) counts_.generated_tokens += event.token >= 0 ? 1 : 0;
  show();  // who has its answer also finds it in the counts
  const int64_t shown_ns = base::this_thread_cpu_ns();
  tell_step(events, began_ns);
  counts_.told_ns += base::this_thread_cpu_ns() - shown_ns;
}

void TextService::tell_step(const std::vector<GenerateEvent>& events, int64_t began_ns) {
  const std::shared_ptr<void> telling = options_.begin_telling ? options_.begin_telling() : nullptr;
  for (const TokenScheduler::Begun& begun : scheduler_->begun()) {
    const auto at = live_.find(begun.request);
    if (at == live_.end()) continue;
    at->second.is_begun = true;
    asked_.begun.insert(begun.request);
    const std::shared_ptr<TextListener> listener = at->second.listener;
    const auto tell = [&] {
      listener->on_step(began_ns);
      listener->on_begin(begun.known_tokens);
    };
    if (!guard(*listener, tell)) end(begun.request, true);
  }
  for (const GenerateEvent& event : events) tell(event);
}

void TextService::fail_all(const base::Error& error) {
  asked_.begun.clear();
  std::map<int64_t, Live> lost;
  lost.swap(live_);
  shown_.under_way -= lost.size();
  for (auto& [number, live] : lost) live.listener->on_error(error);
}

void TextService::show() {
  counts_.running = scheduler_ ? scheduler_->running() : 0;
  counts_.waiting = (scheduler_ ? scheduler_->waiting() : 0) + parked_.size();
  counts_.under_way = shown_.under_way.load();
  counts_.page_use = scheduler_ ? scheduler_->page_use() : 0;
  counts_.put_back = lost_.put_back + (scheduler_ ? scheduler_->put_back() : 0);
  const engine::MaskCost masks = scheduler_ ? scheduler_->mask_cost() : engine::MaskCost();
  counts_.masks = {lost_.masks.masks + masks.masks, lost_.masks.ns + masks.ns};
  counts_.drafts = lost_.drafts;
  if (scheduler_) counts_.drafts += scheduler_->draft_counts();
  shown_.stats.with([&](TextStats& shown) { shown = counts_; });
  if (options_.on_step) options_.on_step(counts_);
  const size_t background = scheduler_ ? scheduler_->waiting_background() : 0;
  const std::lock_guard lock(mutex_);
  inbox_.waiting = counts_.waiting - background + count_clients(inbox_.requests);
}

void TextService::run() {
  while (take_in()) {
    try {
      if (!has_steps()) {
        show();
        continue;
      }
      drop_gone();
      step();
    } catch (const std::exception&) {
      shown_.step_began_ns = 0;
      const base::Error error = current_error();
      lost_.put_back += scheduler_->put_back();
      lost_.masks = counts_.masks;
      lost_.drafts = counts_.drafts;
      scheduler_.reset();
      engine_ = {};
      show();
      fail_all(error);
    }
  }
  scheduler_.reset();
  engine_ = {};
  show();
  {
    const std::lock_guard lock(mutex_);
    inbox_.has_ended = inbox_.is_idle = true;
  }
  changed_.notify_all();
}

}  // namespace trireme::sched
