// The mailbox between threads, and the lifetime of an exchange: all synchronisation of the HTTP server.
#include "http/exchange.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/error.h"
#include "http/coding.h"
#include "http/reply.h"

namespace trireme::http {

Mailbox::Mailbox() : wake_fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (wake_fd_ < 0)
    base::fail(base::ErrorCode::exhausted, "cannot create an event descriptor: errno ", errno);
}

Mailbox::~Mailbox() {
  close();
  ::close(wake_fd_);
}

// Accesses to the flag and the list are sequentially consistent: either the loop sees the mail before it
// sleeps, or the writer sees that the loop sleeps. Only the writer that found the list empty wakes the loop;
// later writers know that a wake-up is already pending.
void Mailbox::post(Mail* mail) {
  Mail* head = head_.load();
  do {
    mail->next_mail = head;
  } while (!head_.compare_exchange_weak(head, mail));
  if (closed_.load()) {
    close();
  } else if (head == nullptr && !HeldWakes::hold(*this)) {
    wake_if_asleep();
  }
}

void Mailbox::wake_if_asleep() {
  if (sleeping_.load()) wake();
}

void Mailbox::wake() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_fd_, &one, sizeof one);  // a full counter has woken it
}

bool Mailbox::deliver_all() {
  if (head_.load(std::memory_order_relaxed) == nullptr) return false;
  Mail* list = head_.exchange(nullptr);
  Mail* in_order = nullptr;
  while (list != nullptr) {
    Mail* next = list->next_mail;
    list->next_mail = in_order;
    in_order = list;
    list = next;
  }
  while (in_order != nullptr) {
    Mail* next = in_order->next_mail;
    in_order->deliver();
    in_order = next;
  }
  return true;
}

bool Mailbox::about_to_sleep() {
  sleeping_.store(true);
  if (head_.load() == nullptr) return true;
  sleeping_.store(false);
  return false;
}

void Mailbox::woke_up() { sleeping_.store(false); }

void Mailbox::drain_wake_fd() {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = read(wake_fd_, &count, sizeof count);
}

// After close, several threads may get here at once. Each takes the list it finds, so every mail is discarded
// exactly once.
void Mailbox::close() {
  closed_.store(true);
  Mail* list = head_.exchange(nullptr);
  while (list != nullptr) {
    Mail* next = list->next_mail;
    list->discard();
    list = next;
  }
}

namespace {

thread_local HeldWakes* held_wakes = nullptr;  // of this thread; the innermost scope

}  // namespace

HeldWakes::HeldWakes() : outer_(std::exchange(held_wakes, this)) {}

HeldWakes::~HeldWakes() {
  held_wakes = outer_;
  for (size_t i = 0; i < count_; ++i) loops_[i]->wake_if_asleep();
}

bool HeldWakes::hold(Mailbox& loop) {
  HeldWakes* held = held_wakes;
  if (held == nullptr) return false;
  const auto end = held->loops_.begin() + static_cast<ptrdiff_t>(held->count_);
  if (std::find_if(held->loops_.begin(), end, [&](const auto& known) { return known.get() == &loop; }) != end)
    return true;
  if (held->count_ == held->loops_.size()) return false;
  held->loops_[held->count_++] = loop.shared_from_this();
  return true;
}

namespace {

// Markers that differ from any real callback: the client has left; or the answer was given, nobody waits.
std::function<void()>* gone_mark() { return reinterpret_cast<std::function<void()>*>(uintptr_t{1}); }
std::function<void()>* done_mark() { return reinterpret_cast<std::function<void()>*>(uintptr_t{2}); }
bool is_callback(const std::function<void()>* p) { return reinterpret_cast<uintptr_t>(p) > 2; }

void apply_or_cut(Exchange* exchange, Step step, std::string&& piece) {
  try {
    apply_step(exchange, step, std::move(piece));
  } catch (const std::exception&) {  // no memory left
    cut_off(exchange);
  }
}

struct StepMail final : Mail {
  Exchange* exchange;  // holds one count
  Step step;
  std::string piece;

  void deliver() override {
    apply_or_cut(exchange, step, std::move(piece));
    discard();
  }
  void discard() override {
    exchange->release();
    delete this;
  }
};

}  // namespace

void LastStepMail::deliver() {
  apply_or_cut(exchange, step, {});
  discard();
}

void LastStepMail::discard() { exchange->release(); }  // may also destroy this mail

void Exchange::release() {
  if (references.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  std::function<void()>* callback = gone_callback.load();
  if (is_callback(callback)) delete callback;
  delete this;
}

void Exchange::mark_gone() {
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

void Exchange::forget_callback() {
  std::function<void()>* waiting = gone_callback.exchange(done_mark());
  if (is_callback(waiting)) delete waiting;
}

void post_step(Exchange* exchange, Step step, std::string piece) {
  if (exchange->local) return apply_local_step(exchange, step, std::move(piece));
  if (exchange->mailbox->owner.load(std::memory_order_relaxed) == std::this_thread::get_id()) {
    apply_step(exchange, step, std::move(piece));
    return;
  }
  Mail* mail = &exchange->last;
  if (step == Step::start_stream || step == Step::piece) {
    auto* own = new StepMail;
    own->exchange = exchange;
    own->step = step;
    own->piece = std::move(piece);
    mail = own;
  } else {
    exchange->last.exchange = exchange;
    exchange->last.step = step;
  }
  exchange->references.fetch_add(1, std::memory_order_relaxed);
  // The mailbox must outlive post() itself, even if the loop meanwhile frees the exchange and the exchange's
  // reference to it.
  const std::shared_ptr<Mailbox> mailbox = exchange->mailbox;
  mailbox->post(mail);
}

ExchangeRef& ExchangeRef::operator=(ExchangeRef&& other) noexcept {
  if (this != &other) {
    if (exchange_ != nullptr) exchange_->release();
    exchange_ = std::exchange(other.exchange_, nullptr);
  }
  return *this;
}

ExchangeRef::~ExchangeRef() {
  if (exchange_ != nullptr) exchange_->release();
}

Reply& Reply::operator=(Reply&& other) noexcept {
  if (this != &other) {
    Reply old(std::move(exchange_));  // destroys the overwritten sink, which answers like a dropped one
    exchange_ = std::move(other.exchange_);
  }
  return *this;
}

Reply::~Reply() {
  Exchange* exchange = exchange_.get();
  if (exchange == nullptr) return;
  exchange->forget_callback();
  post_step(exchange, Step::drop);  // needs no memory
}

void Reply::send(Response response) {
  Exchange* exchange = exchange_.get();
  base::check(exchange != nullptr, "HTTP reply is used twice");
  exchange->forget_callback();
  compress_response(response, exchange->accepts, exchange->compress_min_bytes);
  exchange->response = std::move(response);
  post_step(exchange, Step::respond);
  exchange_ = ExchangeRef();
}

Stream Reply::stream(Response response) {
  Exchange* exchange = exchange_.get();
  base::check(exchange != nullptr, "HTTP reply is used twice");
  exchange->response = std::move(response);
  post_step(exchange, Step::start_stream);
  return Stream(std::move(exchange_));
}

bool Reply::client_gone() const { return exchange_.get() == nullptr || exchange_.get()->is_gone(); }

void Reply::on_client_gone(std::function<void()> notify) {
  Exchange* exchange = exchange_.get();
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

Stream& Stream::operator=(Stream&& other) noexcept {
  if (this != &other) {
    abort();
    exchange_ = std::move(other.exchange_);
  }
  return *this;
}

Stream::~Stream() { abort(); }

void Stream::abort() {
  Exchange* exchange = exchange_.get();
  if (exchange == nullptr) return;
  exchange->forget_callback();
  post_step(exchange, Step::abort);  // needs no memory either
  exchange_ = ExchangeRef();
}

bool Stream::write(std::string bytes) {
  Exchange* exchange = exchange_.get();
  base::check(exchange != nullptr, "HTTP stream is used after its end");
  if (exchange->is_gone()) return false;
  if (bytes.empty()) return true;
  exchange->backlog_bytes.fetch_add(bytes.size(), std::memory_order_relaxed);
  post_step(exchange, Step::piece, std::move(bytes));
  return true;
}

void Stream::finish() {
  Exchange* exchange = exchange_.get();
  base::check(exchange != nullptr, "HTTP stream is used after its end");
  exchange->forget_callback();
  post_step(exchange, Step::finish);
  exchange_ = ExchangeRef();
}

size_t Stream::backlog_bytes() const {
  return exchange_.get() == nullptr ? 0 : exchange_.get()->backlog_bytes.load(std::memory_order_relaxed);
}

bool Stream::client_gone() const { return exchange_.get() == nullptr || exchange_.get()->is_gone(); }

}  // namespace trireme::http
