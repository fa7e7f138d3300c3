// The line of pieces: one mutex over a short list, and a thread that asks again.
#include "batch/piece_line.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>

namespace trireme::batch {

using Time = std::chrono::steady_clock::time_point;
constexpr int kMostDoublings = 16;

struct PieceLine::State {
  State(RowModel& asked, const LineLimits& within) : model(asked), limits(within) {}

  RowModel& model;
  const LineLimits limits;
  mutable std::mutex mutex;
  std::condition_variable has_room, has_answer, has_retry;
  std::deque<LineItem> items;
  struct Retry {
    std::shared_ptr<Piece> piece;
    int attempt = 0;
  };
  std::multimap<Time, Retry> retries;
  std::exception_ptr error;
  int64_t rows = 0, bytes = 0, retried = 0;
  bool has_ended = false;

  /// With the mutex held.
  void fail(std::exception_ptr what) {
    if (!error) error = std::move(what);
    has_room.notify_all();
    has_answer.notify_all();
  }
  void take_answer(const std::shared_ptr<Piece>& piece, PieceAnswer&& answer, int attempt) {
    const std::lock_guard lock(mutex);
    if (has_ended || error) return;
    try {
      piece->answer(std::move(answer), attempt < limits.retries);
    } catch (const base::Error& e) {
      return fail(std::make_exception_ptr(FinalError(e)));
    } catch (...) {
      return fail(std::current_exception());
    }
    if (piece->question() == nullptr) {
      bytes += piece->bytes();
      return has_answer.notify_all();
    }
    retried += piece->question()->count;
    const auto wait = std::chrono::nanoseconds(limits.retry_wait_ns << std::min(attempt, kMostDoublings));
    retries.emplace(std::chrono::steady_clock::now() + wait, Retry{piece, attempt + 1});
    has_retry.notify_all();
  }
};

PieceLine::PieceLine(RowModel& model, const LineLimits& limits)
    : state_(std::make_shared<State>(model, limits)), retrier_([this] { retry(); }) {}

PieceLine::~PieceLine() {
  end();
  retrier_.join();
}

void PieceLine::ask(const std::shared_ptr<State>& state, const std::shared_ptr<Piece>& piece, int attempt) {
  try {
    state->model.submit(piece->question(), [state, piece, attempt](PieceAnswer&& answer) {
      state->take_answer(piece, std::move(answer), attempt);
    });
  } catch (const base::Error& e) {
    // A row that fails says so in its answer: a model that throws can answer nothing.
    const std::lock_guard lock(state->mutex);
    state->fail(std::make_exception_ptr(FinalError(e.with("model"))));
  }
}

bool PieceLine::push(LineItem item) {
  State& s = *state_;
  const std::shared_ptr<Piece> piece = item.piece;
  {
    std::unique_lock lock(s.mutex);
    s.has_room.wait(lock, [&] {
      const bool is_full = s.rows >= s.limits.rows || s.bytes >= s.limits.bytes;
      return s.has_ended || s.error || piece == nullptr || !is_full;
    });
    if (s.has_ended || s.error) return false;
    if (piece != nullptr) {
      s.rows += piece->rows();
      if (piece->question() == nullptr) s.bytes += piece->bytes();  // no row of it could be read
    }
    s.items.push_back(std::move(item));
    s.has_answer.notify_all();
  }
  if (piece == nullptr || piece->question() == nullptr) return true;
  ask(state_, piece, 0);
  return true;
}

bool PieceLine::wait(int64_t ns) {
  std::unique_lock lock(state_->mutex);
  return !state_->has_room.wait_for(lock, std::chrono::nanoseconds(ns),
                                    [&] { return state_->has_ended || state_->error; });
}

void PieceLine::fail(std::exception_ptr error) {
  const std::lock_guard lock(state_->mutex);
  state_->fail(std::move(error));
}

std::optional<LineItem> PieceLine::next(int64_t wait_ns) {
  State& s = *state_;
  std::unique_lock lock(s.mutex);
  const auto is_ready = [&] {
    if (s.error) return true;
    if (s.items.empty()) return false;
    const LineItem& front = s.items.front();
    return front.piece == nullptr || front.piece->question() == nullptr;
  };
  if (!s.has_answer.wait_for(lock, std::chrono::nanoseconds(wait_ns), is_ready)) return std::nullopt;
  if (s.error) std::rethrow_exception(s.error);
  LineItem item = std::move(s.items.front());
  s.items.pop_front();
  if (item.piece != nullptr) {
    s.rows -= item.piece->rows();
    s.bytes -= item.piece->bytes();
    s.has_room.notify_all();
  }
  return item;
}

void PieceLine::end() {
  const std::lock_guard lock(state_->mutex);
  state_->has_ended = true;
  state_->has_room.notify_all();
  state_->has_answer.notify_all();
  state_->has_retry.notify_all();
}

void PieceLine::retry() {
  State& s = *state_;
  std::unique_lock lock(s.mutex);
  while (!s.has_ended) {
    if (s.retries.empty()) {
      s.has_retry.wait(lock, [&] { return s.has_ended || !s.retries.empty(); });
      continue;
    }
    const Time due = s.retries.begin()->first;
    if (std::chrono::steady_clock::now() < due) {
      s.has_retry.wait_until(lock, due);
      continue;
    }
    const State::Retry next = std::move(s.retries.begin()->second);
    s.retries.erase(s.retries.begin());
    lock.unlock();
    ask(state_, next.piece, next.attempt);
    lock.lock();
  }
}

int64_t PieceLine::rows() const {
  const std::lock_guard lock(state_->mutex);
  return state_->rows;
}

int64_t PieceLine::retried() const {
  const std::lock_guard lock(state_->mutex);
  return state_->retried;
}

}  // namespace trireme::batch
