// Load generator threads: one event loop each, requests started by the schedule, never by the answers.
#include "load/generator.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <queue>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/rng.h"
#include "serve/http_client.h"
#include "serve/http_parser.h"

namespace trireme::load {

ArrivalTimes::ArrivalTimes(const LoadPlan& plan, int thread)
    : arrivals_(plan.arrivals),
      gap_ns_(1e9 * plan.threads / plan.rate),
      at_ns_(arrivals_ == Arrivals::fixed ? 1e9 * thread / plan.rate - gap_ns_ : 0),
      seed_(plan.seed),
      stream_(static_cast<uint64_t>(thread)) {}

int64_t ArrivalTimes::next_ns() {
  if (arrivals_ == Arrivals::fixed) {
    at_ns_ += gap_ns_;
  } else {
    const base::PhiloxBlock words = base::philox_block(seed_, stream_, index_++);
    at_ns_ += -gap_ns_ * std::log(1 - base::uniform_f64(words[0], words[1]));
  }
  return static_cast<int64_t>(at_ns_);
}

namespace {

constexpr int64_t kMaxIntervals = 60;
constexpr int64_t kTimeoutScanNs = 5 * base::kNsPerMs;

struct Address {
  sockaddr_storage storage{};
  socklen_t bytes = 0;
  int family = AF_INET;
};

// Connects once to find the address that answers; later connections skip the name look-up.
Address probe(const std::string& host, uint16_t port) {
  const int fd = serve::http_connect(host, port, false);
  Address out;
  out.bytes = sizeof out.storage;
  getpeername(fd, reinterpret_cast<sockaddr*>(&out.storage), &out.bytes);
  out.family = out.storage.ss_family;
  ::close(fd);
  return out;
}

struct Window {
  int64_t start_ns, counted_from_ns, end_ns, interval_ns;
};

struct Connection {
  enum class State : uint8_t { closed, connecting, idle, sending, receiving };
  int fd = -1;
  State state = State::closed;
  const std::string* request = nullptr;
  size_t sent = 0;
  int64_t query = 0;    // of a pacer
  size_t of_class = 0;  // of a mix
  int64_t scheduled_ns = 0;
  int64_t started_ns = 0;
  serve::HttpResponseParser parser;
};

class Worker {
 public:
  Worker(const LoadPlan& plan, const Address& address, const Window& window, int thread);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  void run();
  LoadResult result;
  std::exception_ptr failure;

 private:
  using Due = std::pair<int64_t, Connection*>;
  bool open_loop() const { return plan_.rate > 0 || plan_.pacer != nullptr; }
  bool counted(int64_t scheduled_ns) const {
    return scheduled_ns >= window_.counted_from_ns && scheduled_ns < end_ns_;
  }
  void start_due();
  void queue_arrivals();
  void queue_paced();
  void send_backlog();
  size_t next_request();
  void start(Connection& c, const Send& what);
  void tell_pacer(const Connection& c, bool success);
  void connect(Connection& c);
  void send(Connection& c);
  void receive(Connection& c);
  void on_event(Connection& c, uint32_t events);
  void succeed(Connection& c);
  void fail(Connection& c, const std::string& error_class);
  void finish(Connection& c);
  void count_error(int64_t scheduled_ns, const std::string& error_class);
  void check_timeouts();
  void close(Connection& c);
  bool done() const;
  void wait();
  Interval& interval_at(int64_t ns);

  const LoadPlan& plan_;
  const Address& address_;
  Window window_;
  int64_t end_ns_;  // moves forward when the quota of requests is reached
  int64_t quota_;   // counted requests still to start; < 0: unlimited
  ArrivalTimes arrivals_;
  int64_t next_arrival_ns_ = 0;
  size_t next_request_;
  int epoll_fd_;
  int64_t now_ns_ = 0;
  int64_t next_timeout_scan_ns_ = 0;
  std::vector<std::unique_ptr<Connection>> connections_;
  std::vector<Connection*> idle_;
  std::priority_queue<Due, std::vector<Due>, std::greater<>> thinking_;
  std::deque<Send> backlog_;  // scheduled, waiting for a connection
  int64_t in_flight_ = 0;
  std::vector<char> buffer_;
};

int64_t share_of(int64_t total, int threads, int thread) {
  return total * (thread + 1) / threads - total * thread / threads;
}

Worker::Worker(const LoadPlan& plan, const Address& address, const Window& window, int thread)
    : plan_(plan),
      address_(address),
      window_(window),
      end_ns_(window.end_ns),
      quota_(plan.max_requests > 0 ? share_of(plan.max_requests, plan.threads, thread) : -1),
      arrivals_(plan, thread),
      next_request_(static_cast<size_t>(thread) * 7919),
      epoll_fd_(epoll_create1(EPOLL_CLOEXEC)),
      buffer_(size_t{256} << 10) {
  base::check(epoll_fd_ >= 0, "cannot create an epoll descriptor: errno ", errno);
  const int64_t wanted = open_loop() ? plan.connections : plan.concurrency;
  for (int64_t i = 0; i < share_of(wanted, plan.threads, thread); ++i) {
    auto c = std::make_unique<Connection>();
    c->parser.discard_body(true);
    if (open_loop()) {
      idle_.push_back(c.get());
    } else {
      thinking_.emplace(window.start_ns, c.get());
    }
    connections_.push_back(std::move(c));
  }
  if (plan.rate > 0) next_arrival_ns_ = window_.start_ns + arrivals_.next_ns();
  result.interval_ns = window_.interval_ns;
  if (plan.mix != nullptr) {
    for (const std::string& name : plan.mix->classes) result.classes.push_back({name, {}, 0});
  }
}

Worker::~Worker() {
  for (const auto& c : connections_) close(*c);
  ::close(epoll_fd_);
}

void Worker::run() {
  prctl(PR_SET_TIMERSLACK, 1UL);  // the default lets the kernel wake us 50 us late
  std::array<epoll_event, 256> events;
  for (;;) {
    now_ns_ = base::SystemClock().now_ns();
    start_due();
    if (now_ns_ >= next_timeout_scan_ns_) check_timeouts();
    if (done()) return;
    wait();
    const int count = epoll_wait(epoll_fd_, events.data(), static_cast<int>(events.size()), 0);
    now_ns_ = base::SystemClock().now_ns();
    for (int i = 0; i < count; ++i) {
      const epoll_event& e = events[static_cast<size_t>(i)];
      on_event(*static_cast<Connection*>(e.data.ptr), e.events);
    }
  }
}

bool Worker::done() const {
  const bool quota_reached = quota_ == 0 || (plan_.pacer != nullptr && plan_.pacer->done());
  return (now_ns_ >= end_ns_ || quota_reached) && in_flight_ == 0 && backlog_.empty();
}

// epoll counts in milliseconds; waiting on its descriptor with ppoll gives the nanoseconds that a schedule
// needs.
void Worker::wait() {
  int64_t until = std::min(next_timeout_scan_ns_, now_ns_ < end_ns_ ? end_ns_ : INT64_MAX);
  if (plan_.rate > 0 && next_arrival_ns_ < end_ns_) until = std::min(until, next_arrival_ns_);
  if (plan_.pacer != nullptr && plan_.pacer->next_ns() != Pacer::kNever)
    until = std::min(until, window_.start_ns + plan_.pacer->next_ns());
  if (!thinking_.empty() && now_ns_ < end_ns_) until = std::min(until, thinking_.top().first);
  const int64_t ns = std::max<int64_t>(0, until - base::SystemClock().now_ns());
  const timespec ts{static_cast<time_t>(ns / base::kNsPerSecond), static_cast<long>(ns % base::kNsPerSecond)};
  pollfd p{epoll_fd_, POLLIN, 0};
  ppoll(&p, 1, &ts, nullptr);
}

void Worker::start_due() {
  if (open_loop()) {
    if (plan_.pacer != nullptr) {
      queue_paced();
    } else {
      queue_arrivals();
    }
    send_backlog();
    return;
  }
  while (!thinking_.empty() && thinking_.top().first <= now_ns_) {
    const auto [due, c] = thinking_.top();
    thinking_.pop();
    if (now_ns_ < end_ns_ && quota_ != 0) start(*c, {due, next_request(), 0});
  }
}

void Worker::queue_arrivals() {
  for (; next_arrival_ns_ <= now_ns_ && next_arrival_ns_ < end_ns_;
       next_arrival_ns_ = window_.start_ns + arrivals_.next_ns()) {
    if (quota_ == 0) end_ns_ = next_arrival_ns_;
    if (next_arrival_ns_ >= end_ns_) break;
    if (quota_ > 0 && counted(next_arrival_ns_)) --quota_;
    if (counted(next_arrival_ns_)) ++result.scheduled;
    backlog_.push_back({next_arrival_ns_, next_request(), 0});
  }
}

void Worker::queue_paced() {
  const int64_t since_start = now_ns_ - window_.start_ns;
  while (plan_.pacer->next_ns() <= since_start) {
    Send what = plan_.pacer->take(since_start);
    what.scheduled_ns += window_.start_ns;
    ++result.scheduled;
    backlog_.push_back(what);
  }
}

void Worker::send_backlog() {
  while (!backlog_.empty()) {
    const Send what = backlog_.front();
    if (plan_.pacer == nullptr && now_ns_ - what.scheduled_ns > plan_.timeout_ns) {
      backlog_.pop_front();
      count_error(what.scheduled_ns, "timeout before sending");
      continue;
    }
    if (idle_.empty()) return;
    backlog_.pop_front();
    // The connection used last is the warmest; the others stay free for bursts.
    Connection* c = idle_.back();
    idle_.pop_back();
    start(*c, what);
  }
}

size_t Worker::next_request() {
  const bool ordered = plan_.mix != nullptr && !plan_.mix->order.empty();
  const size_t at = next_request_++ % (ordered ? plan_.mix->order.size() : plan_.requests->size());
  return ordered ? plan_.mix->order[at] : at;
}

void Worker::start(Connection& c, const Send& what) {
  if (!open_loop() && quota_ > 0 && counted(what.scheduled_ns)) --quota_;
  if (!open_loop() && counted(what.scheduled_ns)) ++result.scheduled;
  c.request = &(*plan_.requests)[what.request];
  c.of_class = plan_.mix != nullptr && !plan_.mix->class_of.empty() ? plan_.mix->class_of[what.request] : 0;
  c.sent = 0;
  c.query = what.query;
  c.scheduled_ns = what.scheduled_ns;
  c.started_ns = now_ns_;
  c.parser.reset(c.request->compare(0, 5, "HEAD ") == 0);
  ++in_flight_;
  if (c.fd < 0) {
    connect(c);
  } else {
    c.state = Connection::State::sending;
    send(c);
  }
}

void Worker::connect(Connection& c) {
  c.fd = ::socket(address_.family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (c.fd < 0) {
    fail(c, "connect");
    return;
  }
  const int on = 1;
  setsockopt(c.fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  epoll_event event{};
  event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
  event.data.ptr = &c;
  const int rc = ::connect(c.fd, reinterpret_cast<const sockaddr*>(&address_.storage), address_.bytes);
  if (rc != 0 && errno != EINPROGRESS) {
    fail(c, "connect");
    return;
  }
  c.state = Connection::State::connecting;
  epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, c.fd, &event);
}

void Worker::on_event(Connection& c, uint32_t events) {
  using State = Connection::State;
  if (c.fd < 0) return;
  if (c.state == State::connecting) {
    int error = 0;
    socklen_t bytes = sizeof error;
    getsockopt(c.fd, SOL_SOCKET, SO_ERROR, &error, &bytes);
    if (error != 0) {
      fail(c, "connect");
      return;
    }
    if ((events & EPOLLOUT) == 0) return;
    c.state = State::sending;
  }
  if (c.state == State::sending && (events & EPOLLOUT) != 0) send(c);
  // An answer may come before the request is out (413); reading is right in both states.
  const bool busy = c.state == State::sending || c.state == State::receiving;
  if (busy && (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) receive(c);
  if (c.state == State::idle && (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) close(c);
}

void Worker::send(Connection& c) {
  while (c.sent < c.request->size()) {
    const ssize_t n = ::send(c.fd, c.request->data() + c.sent, c.request->size() - c.sent, MSG_NOSIGNAL);
    if (n >= 0) {
      c.sent += static_cast<size_t>(n);
      result.sent_bytes += n;
    } else if (errno == EAGAIN) {
      return;
    } else if (errno != EINTR) {
      receive(c);  // the server may have answered before it closed
      if (c.state == Connection::State::sending) fail(c, "closed");
      return;
    }
  }
  c.state = Connection::State::receiving;
}

void Worker::receive(Connection& c) {
  for (;;) {
    const ssize_t n = ::recv(c.fd, buffer_.data(), buffer_.size(), 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;
    try {
      if (n <= 0) {
        if (n == 0 && c.parser.head_done()) {
          c.parser.feed_eof();
          succeed(c);
        } else {
          fail(c, "closed");
        }
        return;
      }
      const size_t used = c.parser.feed({buffer_.data(), static_cast<size_t>(n)});
      if (c.parser.done()) {
        if (used < static_cast<size_t>(n)) {
          fail(c, "malformed answer");
        } else {
          succeed(c);
        }
        return;
      }
    } catch (const base::Error&) {
      fail(c, n == 0 ? "closed" : "malformed answer");
      return;
    }
  }
}

Interval& Worker::interval_at(int64_t ns) {
  const auto at =
      static_cast<size_t>(std::max<int64_t>(0, (ns - window_.counted_from_ns) / window_.interval_ns));
  if (result.intervals.size() <= at) result.intervals.resize(at + 1);
  return result.intervals[at];
}

void Worker::succeed(Connection& c) {
  const serve::HttpReceived& answer = c.parser.message();
  if (answer.status < 200 || answer.status > 299) {
    fail(c, "status " + std::to_string(answer.status));
    return;
  }
  // The clock is read again: several answers may have been handled since this wake-up.
  now_ns_ = base::SystemClock().now_ns();
  if (counted(c.scheduled_ns)) {
    ++result.succeeded;
    if (!result.classes.empty()) result.classes[c.of_class].latency.record(now_ns_ - c.scheduled_ns);
    result.latency.record(now_ns_ - c.scheduled_ns);
    result.service.record(now_ns_ - c.started_ns);
    result.received_bytes += static_cast<int64_t>(c.parser.body_bytes());
    interval_at(c.scheduled_ns).latency.record(now_ns_ - c.scheduled_ns);
  }
  if (counted(now_ns_)) {
    ++result.completed_in_window;
    ++interval_at(now_ns_).completed;
  }
  tell_pacer(c, true);
  if (!answer.keep_alive || c.sent < c.request->size()) close(c);
  finish(c);
}

void Worker::count_error(int64_t scheduled_ns, const std::string& error_class) {
  if (!counted(scheduled_ns)) return;
  ++result.errors[error_class];
  ++interval_at(scheduled_ns).errors;
}

void Worker::tell_pacer(const Connection& c, bool success) {
  if (plan_.pacer != nullptr) plan_.pacer->answered(c.query, now_ns_ - window_.start_ns, success);
}

void Worker::fail(Connection& c, const std::string& error_class) {
  count_error(c.scheduled_ns, error_class);
  if (!result.classes.empty() && counted(c.scheduled_ns)) ++result.classes[c.of_class].failed;
  tell_pacer(c, false);
  const bool reusable = c.parser.done() && c.parser.message().keep_alive && c.sent == c.request->size() &&
                        error_class.compare(0, 6, "status") == 0;
  if (!reusable) close(c);
  finish(c);
}

// The connection is free again; in a closed loop its next request is due after the think time. A failed
// connection waits a moment, so that a dead server is not flooded with attempts.
void Worker::finish(Connection& c) {
  constexpr int64_t kRetryNs = 10 * base::kNsPerMs;
  --in_flight_;
  const bool lost = c.fd < 0 && c.parser.message().status == 0;
  if (c.fd >= 0) c.state = Connection::State::idle;
  if (open_loop()) {
    idle_.push_back(&c);
  } else {
    thinking_.emplace(now_ns_ + std::max(plan_.think_ns, lost ? kRetryNs : 0), &c);
  }
}

void Worker::close(Connection& c) {
  if (c.fd >= 0) ::close(c.fd);
  c.fd = -1;
  c.state = Connection::State::closed;
}

void Worker::check_timeouts() {
  next_timeout_scan_ns_ = now_ns_ + kTimeoutScanNs;
  for (const auto& c : connections_) {
    const bool busy = c->state != Connection::State::closed && c->state != Connection::State::idle;
    const int64_t from_ns = plan_.pacer != nullptr ? c->started_ns : c->scheduled_ns;
    if (busy && now_ns_ - from_ns > plan_.timeout_ns) fail(*c, "timeout");
  }
}

}  // namespace

LoadResult run_load(const LoadPlan& plan) {
  const int ways = (plan.concurrency > 0 ? 1 : 0) + (plan.rate > 0 ? 1 : 0) + (plan.pacer != nullptr ? 1 : 0);
  base::require(ways == 1, "load needs either a concurrency, a rate or a pacer");
  base::require(plan.requests != nullptr && !plan.requests->empty(), "load has nothing to send");
  base::require(plan.duration_ns > 0 && plan.timeout_ns > 0, "load needs a positive duration and timeout");
  LoadPlan fitted = plan;
  const int64_t connections = plan.concurrency > 0 ? plan.concurrency : plan.connections;
  fitted.threads = static_cast<int>(std::clamp<int64_t>(plan.threads, 1, connections));
  if (plan.pacer != nullptr) fitted.threads = 1;
  const Address address = probe(plan.host, plan.port);
  const int64_t start = base::SystemClock().now_ns();
  // Whole intervals: a part of one at the end would look like a drop in throughput.
  const int64_t interval = (plan.duration_ns + kMaxIntervals - 1) / kMaxIntervals;
  Window window{start, start + plan.warmup_ns, start + plan.warmup_ns + plan.duration_ns, interval};
  if (plan.pacer != nullptr) window = {start, start, INT64_MAX, interval};
  std::vector<std::unique_ptr<Worker>> workers;
  for (int t = 0; t < fitted.threads; ++t)
    workers.push_back(std::make_unique<Worker>(fitted, address, window, t));
  std::vector<std::thread> threads;
  for (const auto& w : workers) {
    threads.emplace_back([&worker = *w] {
      try {
        worker.run();
      } catch (...) {
        worker.failure = std::current_exception();
      }
    });
  }
  for (std::thread& t : threads) t.join();
  const int64_t ended = std::min(base::SystemClock().now_ns(), window.end_ns);
  LoadResult result;
  for (const auto& w : workers) {
    if (w->failure) std::rethrow_exception(w->failure);
    result.merge(w->result);
  }
  result.concurrency = plan.concurrency;
  result.offered_rate = plan.rate;
  result.window_s = std::max(1e-9, static_cast<double>(ended - window.counted_from_ns) / 1e9);
  result.interval_ns = interval;
  // Intervals in which nothing happened count as well.
  result.intervals.resize(
      static_cast<size_t>(std::max(1.0, std::round(result.window_s * 1e9 / static_cast<double>(interval)))));
  return result;
}

}  // namespace trireme::load
