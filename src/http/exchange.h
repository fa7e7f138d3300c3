// Internal to the HTTP server: one request's state shared by its connection and its sink, and the threads'
// mailbox.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "http/message.h"

namespace trireme::http {

class Http1Connection;
struct Exchange;

/// A message to a loop's thread. The mailbox owns it from post() until deliver() or discard().
struct Mail {
  virtual ~Mail() = default;
  virtual void deliver() = 0;  // on the loop's thread
  virtual void discard() = 0;  // the loop has ended
  Mail* next_mail = nullptr;
};

/// Many writers, one reader, no lock: writers push on an atomic list, the loop takes the whole list and
/// reverses it.
class Mailbox : public std::enable_shared_from_this<Mailbox> {
 public:
  Mailbox();
  ~Mailbox();
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  /// From any thread. Wakes the loop only if it sleeps and the box was empty; where the thread holds wake-ups
  /// (HeldWakes), once it holds them no longer.
  void post(Mail* mail);
  void wake();

  // The loop's side.
  int wake_fd() const { return wake_fd_; }
  bool deliver_all();     // true if there was anything
  bool about_to_sleep();  // false if mail has arrived meanwhile: do not sleep
  void woke_up();
  bool has_mail() const { return head_.load(std::memory_order_relaxed) != nullptr; }
  void drain_wake_fd();
  void wake_if_asleep();
  void close();  // discards what is left and everything that is posted later

  std::atomic<std::thread::id> owner;  // the loop's thread

 private:
  std::atomic<Mail*> head_{nullptr};
  std::atomic<bool> sleeping_{false};
  std::atomic<bool> closed_{false};
  int wake_fd_;
};

/// Compression that the client accepts.
enum class Coding : uint8_t { identity, gzip, deflate };

/// What is posted to a request's connection.
enum class Step : uint8_t { respond, drop, start_stream, piece, finish, abort };

/// The step with which an answer ends: it has its place in the exchange, so that no answer is lost for want
/// of memory. Holds one count of the exchange while it is on its way.
struct LastStepMail final : Mail {
  Exchange* exchange = nullptr;
  Step step = Step::drop;
  void deliver() override;
  void discard() override;
};

struct Exchange {
  std::atomic<int> references{2};                         // the connection's and the sink's
  std::shared_ptr<Mailbox> mailbox;                       // null of a request that the process asks itself,
  std::function<void(Response&&)> local;                  // whose whole answer goes here,
  std::shared_ptr<const std::atomic<bool>> nobody_waits;  // unless this has become true; null: it never does
  size_t compress_min_bytes = 0;
  Coding accepts = Coding::identity;

  // Client-gone signal: null, a waiting callback, or one of two marks.
  std::atomic<std::function<void()>*> gone_callback{nullptr};
  std::atomic<bool> gone{false};
  std::atomic<size_t> backlog_bytes{0};  // of a stream

  // Written by the sink before posting, read by the loop's thread after delivery.
  Response response;

  LastStepMail last;

  // The loop's thread only.
  Http1Connection* connection = nullptr;  // null once the connection is closed
  Exchange* next = nullptr;               // later request on the same connection
  bool ready = false;                     // response may be written
  bool dropped = false;                   // the sink ended unused: the response is still to be made
  bool streaming = false;
  bool head_written = false;
  bool finished = false;  // of a stream
  bool aborted = false;
  bool head_request = false;
  bool http10 = false;
  bool keep_alive = true;
  std::string pieces;  // stream bytes waiting for their turn
  base::MemoryLease pieces_lease{base::MemoryUse::answers, 0};
  size_t held_bytes = 0;  // of the request until its answer is there, then of the answer

  bool is_gone() const { return gone.load() || (nobody_waits && nobody_waits->load()); }
  void release();
  void mark_gone();        // loop's thread, once
  void forget_callback();  // the sink, when it answers
};

/// The step of a request that the process asks itself, on the thread that answers.
void apply_local_step(Exchange* exchange, Step step, std::string&& piece);

/// Hands a step of the answer to the loop: at once if the caller is the loop's thread, else by mail.
void post_step(Exchange* exchange, Step step, std::string piece = {});

/// Implemented by the connection: applies a step (loop's thread).
void apply_step(Exchange* exchange, Step step, std::string&& piece);
/// Likewise: closes the connection of an answer that cannot go on.
void cut_off(Exchange* exchange);

}  // namespace trireme::http
