// Mailbox between threads and the life of an exchange; the only synchronisation of the HTTP server.
#include "serve/http_exchange.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>

#include "base/error.h"
#include "serve/http_coding.h"
#include "serve/http_reply.h"

namespace trireme::serve {

HttpMailbox::HttpMailbox() : wake_fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (wake_fd_ < 0)
    base::fail(base::ErrorCode::exhausted, "cannot create an event descriptor: errno ", errno);
}

HttpMailbox::~HttpMailbox() {
  close();
  ::close(wake_fd_);
}

// The flag and the list are both sequentially consistent: either the loop sees the mail before it sleeps, or
// the writer sees that it sleeps. Only the writer that found the list empty wakes; a later one knows that a
// wake is due.
void HttpMailbox::post(HttpMail* mail) {
  HttpMail* head = head_.load();
  do {
    mail->next_mail = head;
  } while (!head_.compare_exchange_weak(head, mail));
  if (closed_.load()) {
    close();
  } else if (head == nullptr && sleeping_.load()) {
    wake();
  }
}

void HttpMailbox::wake() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_fd_, &one, sizeof one);  // full counter: already awake
}

bool HttpMailbox::deliver_all() {
  if (head_.load(std::memory_order_relaxed) == nullptr) return false;
  HttpMail* list = head_.exchange(nullptr);
  HttpMail* in_order = nullptr;
  while (list != nullptr) {
    HttpMail* next = list->next_mail;
    list->next_mail = in_order;
    in_order = list;
    list = next;
  }
  while (in_order != nullptr) {
    HttpMail* next = in_order->next_mail;
    in_order->deliver();
    in_order = next;
  }
  return true;
}

bool HttpMailbox::about_to_sleep() {
  sleeping_.store(true);
  if (head_.load() == nullptr) return true;
  sleeping_.store(false);
  return false;
}

void HttpMailbox::woke_up() { sleeping_.store(false); }

void HttpMailbox::drain_wake_fd() {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = read(wake_fd_, &count, sizeof count);
}

// Several threads may come here at once after the end: each takes what it finds, so every mail is discarded
// once.
void HttpMailbox::close() {
  closed_.store(true);
  HttpMail* list = head_.exchange(nullptr);
  while (list != nullptr) {
    HttpMail* next = list->next_mail;
    list->discard();
    list = next;
  }
}

namespace {

// Marks beyond any real callback: the client has gone; the answer was given and nobody waits any more.
std::function<void()>* gone_mark() { return reinterpret_cast<std::function<void()>*>(uintptr_t{1}); }
std::function<void()>* done_mark() { return reinterpret_cast<std::function<void()>*>(uintptr_t{2}); }
bool is_callback(const std::function<void()>* p) { return reinterpret_cast<uintptr_t>(p) > 2; }

struct StepMail final : HttpMail {
  HttpExchange* exchange;  // holds one count
  HttpStep step;
  std::string piece;

  void deliver() override {
    http_apply_step(exchange, step, std::move(piece));
    discard();
  }
  void discard() override {
    exchange->release();
    delete this;
  }
};

}  // namespace

void HttpExchange::release() {
  if (references.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  std::function<void()>* callback = gone_callback.load();
  if (is_callback(callback)) delete callback;
  delete this;
}

void HttpExchange::mark_gone() {
  gone.store(true);
  std::function<void()>* waiting = gone_callback.load();
  while (waiting == nullptr || is_callback(waiting)) {
    if (!gone_callback.compare_exchange_weak(waiting, gone_mark())) continue;
    if (waiting != nullptr) {
      (*waiting)();
      delete waiting;
    }
    return;
  }
}

void HttpExchange::forget_callback() {
  std::function<void()>* waiting = gone_callback.exchange(done_mark());
  if (is_callback(waiting)) delete waiting;
}

void http_post_step(HttpExchange* exchange, HttpStep step, std::string piece) {
  if (exchange->mailbox->owner.load(std::memory_order_relaxed) == std::this_thread::get_id()) {
    http_apply_step(exchange, step, std::move(piece));
    return;
  }
  auto* mail = new StepMail;
  mail->exchange = exchange;
  mail->step = step;
  mail->piece = std::move(piece);
  exchange->references.fetch_add(1, std::memory_order_relaxed);
  // The mailbox must outlive the post itself, even if the loop frees the exchange (and its reference)
  // meanwhile.
  const std::shared_ptr<HttpMailbox> mailbox = exchange->mailbox;
  mailbox->post(mail);
}

HttpExchangeRef& HttpExchangeRef::operator=(HttpExchangeRef&& other) noexcept {
  if (this != &other) {
    if (exchange_ != nullptr) exchange_->release();
    exchange_ = std::exchange(other.exchange_, nullptr);
  }
  return *this;
}

HttpExchangeRef::~HttpExchangeRef() {
  if (exchange_ != nullptr) exchange_->release();
}

HttpReply& HttpReply::operator=(HttpReply&& other) noexcept {
  if (this != &other) {
    HttpReply old(
        std::move(exchange_));  // an unused sink that is overwritten answers like one that is dropped
    exchange_ = std::move(other.exchange_);
  }
  return *this;
}

HttpReply::~HttpReply() {
  HttpExchange* exchange = exchange_.get();
  if (exchange == nullptr) return;
  exchange->forget_callback();
  try {
    http_post_step(exchange, HttpStep::drop);
  } catch (...) {
    // Out of memory while answering: the client's own timeout ends the wait.
  }
}

void HttpReply::send(HttpResponse response) {
  HttpExchange* exchange = exchange_.get();
  base::check(exchange != nullptr, "HTTP reply is used twice");
  exchange->forget_callback();
  http_compress(response, exchange->accepts, exchange->compress_min_bytes);
  exchange->response = std::move(response);
  http_post_step(exchange, HttpStep::respond);
  exchange_ = HttpExchangeRef();
}

HttpStream HttpReply::stream(HttpResponse response) {
  HttpExchange* exchange = exchange_.get();
  base::check(exchange != nullptr, "HTTP reply is used twice");
  exchange->response = std::move(response);
  http_post_step(exchange, HttpStep::start_stream);
  return HttpStream(std::move(exchange_));
}

bool HttpReply::client_gone() const { return exchange_.get() == nullptr || exchange_.get()->gone.load(); }

void HttpReply::on_client_gone(std::function<void()> notify) {
  HttpExchange* exchange = exchange_.get();
  base::check(exchange != nullptr, "HTTP reply is used up");
  auto owned = std::make_unique<std::function<void()>>(std::move(notify));
  std::function<void()>* expected = nullptr;
  if (exchange->gone_callback.compare_exchange_strong(expected, owned.get())) {
    owned.release();
    return;
  }
  base::check(expected == gone_mark(), "HTTP reply has a client-gone callback already");
  (*owned)();
}

HttpStream& HttpStream::operator=(HttpStream&& other) noexcept {
  if (this != &other) {
    abort();
    exchange_ = std::move(other.exchange_);
  }
  return *this;
}

HttpStream::~HttpStream() { abort(); }

void HttpStream::abort() {
  HttpExchange* exchange = exchange_.get();
  if (exchange == nullptr) return;
  exchange->forget_callback();
  try {
    http_post_step(exchange, HttpStep::abort);
  } catch (...) {
    // Out of memory: the connection's write timeout closes it.
  }
  exchange_ = HttpExchangeRef();
}

bool HttpStream::write(std::string bytes) {
  HttpExchange* exchange = exchange_.get();
  base::check(exchange != nullptr, "HTTP stream is used after its end");
  if (exchange->gone.load()) return false;
  if (bytes.empty()) return true;
  exchange->backlog_bytes.fetch_add(bytes.size(), std::memory_order_relaxed);
  http_post_step(exchange, HttpStep::piece, std::move(bytes));
  return true;
}

void HttpStream::finish() {
  HttpExchange* exchange = exchange_.get();
  base::check(exchange != nullptr, "HTTP stream is used after its end");
  exchange->forget_callback();
  http_post_step(exchange, HttpStep::finish);
  exchange_ = HttpExchangeRef();
}

size_t HttpStream::backlog_bytes() const {
  return exchange_.get() == nullptr ? 0 : exchange_.get()->backlog_bytes.load(std::memory_order_relaxed);
}

bool HttpStream::client_gone() const { return exchange_.get() == nullptr || exchange_.get()->gone.load(); }

}  // namespace trireme::serve
