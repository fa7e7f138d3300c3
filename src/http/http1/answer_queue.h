// Internal to the HTTP server: the requests of a connection that are being answered, in the order of their
// arrival.
#pragma once

#include <cstddef>
#include <string>

#include "http/exchange.h"

namespace trireme::http {

/// From the end of a request to the last byte of its answer in the output. Holds one count of each exchange
/// and knows what all of them hold: until an answer comes, its request stands for one as large as the largest
/// so far.
class AnswerQueue {
 public:
  AnswerQueue() = default;
  AnswerQueue(const AnswerQueue&) = delete;
  AnswerQueue& operator=(const AnswerQueue&) = delete;

  bool empty() const { return first_ == nullptr; }
  int size() const { return size_; }
  size_t held_bytes() const { return held_bytes_; }
  /// Whose answer is due.
  Exchange& front() { return *first_; }
  const Exchange& front() const { return *first_; }
  bool has_one() const { return first_ != nullptr && first_ == last_; }

  /// Takes over one count.
  void push(Exchange& exchange);
  /// The front's answer has been written, or will not be.
  void pop();

  /// The exchange's request holds so many bytes.
  void hold_request(Exchange& exchange, size_t bytes) { hold(exchange, bytes + largest_bytes_); }
  /// Carries out what the exchange's sink says.
  void apply(Exchange& exchange, Step step, std::string&& piece);
  /// Tells those whose answer is not there yet that their client has gone; gives their number.
  size_t tell_gone();

 private:
  void hold(Exchange& exchange, size_t bytes);

  Exchange* first_ = nullptr;
  Exchange* last_ = nullptr;
  int size_ = 0;
  size_t held_bytes_ = 0;     // of all exchanges
  size_t largest_bytes_ = 0;  // of an answer so far
};

}  // namespace trireme::http
