// The queue of a connection's requests: applies what their sinks send, counts the bytes they hold, and tells
// them when the client leaves.
#include "http/http1/answer_queue.h"

#include <algorithm>
#include <new>
#include <utility>

namespace trireme::http {

void AnswerQueue::push(Exchange& exchange) {
  (last_ != nullptr ? last_->next : first_) = &exchange;
  last_ = &exchange;
  ++size_;
}

void AnswerQueue::pop() {
  Exchange* done = first_;
  first_ = done->next;
  if (first_ == nullptr) last_ = nullptr;
  --size_;
  hold(*done, 0);
  done->connection = nullptr;
  done->release();
}

void AnswerQueue::hold(Exchange& exchange, size_t bytes) {
  held_bytes_ = held_bytes_ - exchange.held_bytes + bytes;
  exchange.held_bytes = bytes;
}

void AnswerQueue::apply(Exchange& exchange, Step step, std::string&& piece) {
  switch (step) {
    case Step::drop:
      exchange.dropped = exchange.ready = true;
      exchange.response.status = 500;
      try {
        exchange.response = error_response(500, "request was dropped without an answer");
      } catch (const std::bad_alloc&) {
        // No memory for the message: the answer consists of the status only.
      }
      break;
    case Step::respond:
      exchange.ready = true;
      hold(exchange, exchange.response.body_bytes());
      largest_bytes_ = std::max(largest_bytes_, exchange.held_bytes);
      break;
    case Step::start_stream: exchange.ready = exchange.streaming = true; break;
    case Step::piece:
      exchange.pieces_lease.resize(static_cast<int64_t>(exchange.pieces.size() + piece.size()));
      if (exchange.pieces.empty()) {
        exchange.pieces = std::move(piece);
      } else {
        exchange.pieces += piece;
      }
      break;
    case Step::finish: exchange.finished = true; break;
    case Step::abort: exchange.aborted = true; break;
  }
}

size_t AnswerQueue::tell_gone() {
  size_t told = 0;
  for (Exchange* e = first_; e != nullptr; e = e->next) {
    if (e->gone.load() || (e->ready && !e->streaming)) continue;
    ++told;
    e->mark_gone();
  }
  return told;
}

}  // namespace trireme::http
