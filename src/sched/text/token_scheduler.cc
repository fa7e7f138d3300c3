// Who runs and who waits among the texts of a language model.
#include "sched/text/token_scheduler.h"

#include <algorithm>
#include <tuple>

namespace trireme::sched {

using engine::FinishReason;
using engine::GenerateEvent;

namespace {

constexpr double kAnswerCharge = 2;  // of a token of an answer, beside one of a prompt

}  // namespace

int64_t TokenScheduler::add(engine::GenerateRequest request, const Standing& standing) {
  limits().check(request);
  queue_.push({.number = next_, .request = std::move(request), .standing = standing});
  return next_++;
}

void TokenScheduler::cancel(int64_t request) {
  if (queue_.remove(request)) {
    ended_.push_back({.request = request, .finish = FinishReason::cancelled});
  } else {
    generator_.cancel(request);
  }
}

/// Whether there are pages for its prompt beside what the others need next.
bool TokenScheduler::fits(const TokenQueue::Entry& first) {
  if (generator_.size() == 0) return true;  // its limits say that it fits alone
  // What prompts under way have yet to take, and a page for every text that goes on.
  auto claimed = static_cast<int64_t>(generator_.size());
  for (size_t i = 0; i < generator_.size(); ++i)
    claimed += generator_.pages_for(i, generator_.prompt_left(i));
  const uint64_t changes = generator_.page_changes();
  const bool is_known =
      refused_.number == first.number && refused_.changes == changes && refused_.claimed == claimed;
  if (is_known || generator_.free_pages() <= claimed) return false;
  const engine::DecodeSession::Beginning found = generator_.look(first.request.prompt);
  const int64_t page = generator_.options().page_tokens;
  const auto prompt = static_cast<int64_t>(first.request.prompt.size());
  const int64_t needed = (prompt + page - 1) / page - found.tokens / page;
  if (needed + claimed <= found.free_pages) return true;
  refused_ = {.number = first.number, .claimed = claimed, .changes = changes};
  return false;
}

/// Requests whose turn it is get places and pages.
void TokenScheduler::begin_waiting() {
  const engine::DecodeOptions& options = generator_.options();
  const int64_t most = std::min(options.max_sequences, options.max_tokens);
  while (const TokenQueue::Entry* first = queue_.first()) {
    if (static_cast<int64_t>(generator_.size()) >= most || !fits(*first)) return;
    TokenQueue::Entry entry = queue_.pop();
    const auto whole = static_cast<int64_t>(entry.request.prompt.size());
    standings_[entry.number] = entry.standing;
    generator_.start(entry.number, std::move(entry.request));
    const int64_t known = whole - generator_.prompt_left(generator_.size() - 1);
    if (entry.has_begun) continue;
    shared_tokens_ += known;
    begun_.push_back({.request = entry.number, .prompt_tokens = whole, .known_tokens = known});
    queue_.charge(entry.standing, static_cast<double>(whole - known));
  }
}

/// How many tokens each text runs in the next step.
void TokenScheduler::share_out() {
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
}

/// Pages that the next step needs and that are not there.
int64_t TokenScheduler::missing_pages() const {
  int64_t pages = -generator_.free_pages();
  for (size_t i = 0; i < tokens_.size(); ++i) pages += generator_.pages_for(i, tokens_[i]);
  return pages;
}

/// The text of the lowest priority that came last waits again.
void TokenScheduler::put_back_last() {
  const auto rank = [&](size_t i) {
    const int64_t number = generator_.number(i);
    return std::make_tuple(standings_.at(number).priority, number);
  };
  size_t last = 0;
  for (size_t i = 1; i < generator_.size(); ++i) last = rank(i) > rank(last) ? i : last;
  base::check(generator_.size() > 1, "one text alone finds its pages");
  const int64_t number = generator_.number(last);
  const Standing standing = standings_.at(number);
  standings_.erase(number);
  queue_.push(
      {.number = number, .request = generator_.put_back(last), .standing = standing, .has_begun = true});
  ++put_back_;
}

/// Launches the next step, if there is one.
bool TokenScheduler::launch() {
  begin_waiting();
  share_out();
  while (missing_pages() > 0) {
    put_back_last();
    share_out();
  }
  return generator_.launch(tokens_);
}

/// What tenants were given, and who is over.
void TokenScheduler::account() {
  for (const GenerateEvent& event : events_) {
    const auto at = standings_.find(event.request);
    if (at == standings_.end()) continue;
    if (event.token >= 0) queue_.charge(at->second, kAnswerCharge);
    if (event.finish != FinishReason::none) standings_.erase(at);
  }
}

const std::vector<GenerateEvent>& TokenScheduler::step(int64_t now_ns) {
  events_.clear();
  events_.swap(ended_);
  begun_.clear();
  for (int64_t late = queue_.remove_expired(now_ns); late >= 0; late = queue_.remove_expired(now_ns))
    events_.push_back({.request = late, .finish = FinishReason::expired});
  generator_.clean(events_);
  step_tokens_ = 0;
  while (generator_.can_launch() && launch()) {
  }
  if (generator_.is_launched()) step_tokens_ = generator_.collect(events_);
  account();
  return events_;
}

}  // namespace trireme::sched
