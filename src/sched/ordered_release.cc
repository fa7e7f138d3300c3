// Releases answers in the order of their requests.
#include "sched/ordered_release.h"

#include <utility>

namespace trireme::sched {

void Sink::operator()(Outcome&& outcome) const {
  if (state_->is_told.exchange(true)) return;
  state_->line ? state_->line->tell(state_->place, std::move(state_->take), std::move(outcome))
               : state_->take(std::move(outcome));
}

void Sink::join(std::shared_ptr<AnswerLine> line) {
  state_->place = line->join();
  state_->line = std::move(line);
}

uint64_t AnswerLine::join() {
  const std::lock_guard lock(mutex_);
  entries_[next_place_];
  return next_place_++;
}

void AnswerLine::tell(uint64_t place, Take&& take, Outcome&& outcome) {
  std::unique_lock lock(mutex_);
  Entry& entry = entries_.at(place);
  entry.take = std::move(take);
  entry.outcome = std::move(outcome);
  entry.is_done = true;
  if (is_letting_out_) return;
  is_letting_out_ = true;
  while (!entries_.empty() && entries_.begin()->second.is_done) {
    Entry first = std::move(entries_.begin()->second);
    entries_.erase(entries_.begin());
    lock.unlock();
    first.take(std::move(first.outcome));
    lock.lock();
  }
  is_letting_out_ = false;
}

void OrderedRelease::place(uint32_t level, Sink& sink) {
  std::shared_ptr<AnswerLine> line;
  {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<AnswerLine>& at = lines_[level];
    if (!at) at = std::make_shared<AnswerLine>();
    line = at;
  }
  sink.join(std::move(line));
}

}  // namespace trireme::sched
