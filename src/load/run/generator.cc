// Load generator threads: one event loop each, requests started by the schedule, never by the answers.
#include "load/run/generator.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
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
#include <ctime>
#include <fstream>
#include <queue>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "http/client.h"
#include "http/descriptor.h"
#include "http/socket.h"
#include "load/requests/exchange.h"
#include "load/run/schedule.h"
#include "load/run/tally.h"

namespace trireme::load {

namespace {

constexpr int64_t kMaxIntervals = 60;
constexpr int64_t kTimeoutScanNs = 5 * base::kNsPerMs;
constexpr int64_t kTimeoutScanOfOneNs = 1000;  // a scan may take its share of time, however many connections
constexpr int64_t kGraceNs = base::kNsPerSecond;  // for answers, after an interruption
constexpr int kMostConnecting = 512;              // of a thread: more at once overrun servers' queues

struct Address {
  sockaddr_storage storage{};
  socklen_t bytes = 0;
  int family = AF_INET;
};

// Connects once to find the address that answers; later connections skip the name look-up.
Address probe(const std::string& host, uint16_t port) {
  const int fd = http::connect_to(host, port, false);
  Address out;
  out.bytes = sizeof out.storage;
  getpeername(fd, reinterpret_cast<sockaddr*>(&out.storage), &out.bytes);
  out.family = out.storage.ss_family;
  ::close(fd);
  return out;
}

// Processor time of the calling thread, and time in which it was ready and had to wait for a processor.
struct ThreadTimes {
  int64_t cpu_ns = 0, waited_ns = 0;

  static ThreadTimes now() {
    ThreadTimes t;
    timespec cpu{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &cpu);
    t.cpu_ns = cpu.tv_sec * base::kNsPerSecond + cpu.tv_nsec;
    int64_t ran_ns = 0;
    std::ifstream("/proc/thread-self/schedstat") >> ran_ns >> t.waited_ns;
    return t;
  }
};

struct Connection {
  enum class State : uint8_t { closed, connecting, idle, sending, receiving };
  std::unique_ptr<http::Socket> socket;
  State state = State::closed;
  std::unique_ptr<Exchange> exchange;
  Sent sent;
  bool is_used = false;  // it has carried an answer before
};

class Worker {
 public:
  Worker(const LoadPlan& plan, const Address& address, const Window& window, int thread);

  void run();
  Tally tally;
  std::exception_ptr failure;

 private:
  using Due = std::pair<int64_t, Connection*>;
  void start_due();
  void send_backlog();
  void start(Connection& c, const Send& what);
  void tell_pacer(const Connection& c, bool success);
  void connect(Connection& c);
  void send(Connection& c);
  void receive(Connection& c);
  void receive_idle(Connection& c);
  void take(Connection& c, std::string_view bytes);
  void on_event(Connection& c, uint32_t events);
  void end(Connection& c);
  void fail(Connection& c, const std::string& error_class, bool can_go_on = false);
  void fail_broken(Connection& c);
  void finish(Connection& c, bool can_go_on);
  void check_timeouts();
  void check_stop();
  void close(Connection& c);
  bool done() const;
  void wait();

  const LoadPlan& plan_;
  const Address& address_;
  int64_t start_ns_;
  Schedule schedule_;
  http::Descriptor epoll_;
  int64_t now_ns_ = 0;
  int64_t next_timeout_scan_ns_ = 0;
  std::vector<std::unique_ptr<Connection>> connections_;
  std::vector<Connection*> idle_;
  std::priority_queue<Due, std::vector<Due>, std::greater<>> thinking_;
  std::deque<Due> to_open_;  // due, but their connection must be made first
  size_t starving_ = 0;      // of the backlog, from the front: they have found no connection free
  int64_t in_flight_ = 0;
  int connecting_ = 0;
  int64_t stopped_ns_ = 0;  // 0: nobody asked to
  std::vector<char> buffer_;
};

Worker::Worker(const LoadPlan& plan, const Address& address, const Window& window, int thread)
    : tally(plan, window),
      plan_(plan),
      address_(address),
      start_ns_(window.start_ns),
      schedule_(plan, window, thread),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      buffer_(size_t{256} << 10) {
  base::check(epoll_.get() >= 0, "cannot create an epoll descriptor: errno ", errno);
  const int64_t wanted = schedule_.is_open_loop() ? plan.connections : plan.concurrency;
  for (int64_t i = 0; i < share_of(wanted, plan.threads, thread); ++i) {
    auto c = std::make_unique<Connection>();
    c->exchange = make_exchange(plan.target);
    if (schedule_.is_open_loop()) {
      idle_.push_back(c.get());
    } else {
      thinking_.emplace(window.start_ns, c.get());
    }
    connections_.push_back(std::move(c));
  }
}

void Worker::run() {
  prctl(PR_SET_TIMERSLACK, 1UL);  // the default lets the kernel wake us 50 us late
  std::array<epoll_event, 256> events;
  const ThreadTimes before = ThreadTimes::now();
  for (;;) {
    now_ns_ = base::SystemClock().now_ns();
    start_due();
    if (now_ns_ >= next_timeout_scan_ns_) {
      check_stop();
      check_timeouts();
    }
    if (done()) break;
    wait();
    const int count = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
    now_ns_ = base::SystemClock().now_ns();
    for (int i = 0; i < count; ++i) {
      const epoll_event& e = events[static_cast<size_t>(i)];
      on_event(*static_cast<Connection*>(e.data.ptr), e.events);
    }
  }
  // Where the quota ended the run, nothing was counted after this.
  tally.end_at(std::min(tally.end_ns(), now_ns_));
  const ThreadTimes after = ThreadTimes::now();
  const auto run_ns = static_cast<double>(std::max<int64_t>(1, now_ns_ - start_ns_));
  tally.result.effort.busy_share = static_cast<double>(after.cpu_ns - before.cpu_ns) / run_ns;
  tally.result.effort.waited_share = static_cast<double>(after.waited_ns - before.waited_ns) / run_ns;
}

bool Worker::done() const {
  const bool is_over = now_ns_ >= tally.end_ns() && !schedule_.is_behind(tally.end_ns());
  return (is_over || schedule_.is_used_up()) && in_flight_ == 0 && schedule_.backlog.empty();
}

// epoll counts in milliseconds; waiting on its descriptor with ppoll gives the nanoseconds that a schedule
// needs.
void Worker::wait() {
  int64_t until = next_timeout_scan_ns_;
  if (now_ns_ < tally.end_ns()) {
    until = std::min({until, tally.end_ns(), schedule_.next_ns()});
    if (!thinking_.empty()) until = std::min(until, thinking_.top().first);
  }
  const int64_t ns = std::max<int64_t>(0, until - base::SystemClock().now_ns());
  const timespec ts{static_cast<time_t>(ns / base::kNsPerSecond), static_cast<long>(ns % base::kNsPerSecond)};
  pollfd p{epoll_.get(), POLLIN, 0};
  ppoll(&p, 1, &ts, nullptr);
}

void Worker::start_due() {
  if (schedule_.is_open_loop()) {
    schedule_.queue_due(now_ns_, tally);
    send_backlog();
    return;
  }
  while (!thinking_.empty() && thinking_.top().first <= now_ns_) {
    const auto [due, c] = thinking_.top();
    thinking_.pop();
    if (c->socket == nullptr) {
      to_open_.emplace_back(due, c);
    } else if (now_ns_ < tally.end_ns() && !schedule_.is_used_up()) {
      start(*c, {due, schedule_.next_request(tally), 0});
    }
  }
  for (; !to_open_.empty() && connecting_ < kMostConnecting; to_open_.pop_front()) {
    const auto [due, c] = to_open_.front();
    if (now_ns_ < tally.end_ns() && !schedule_.is_used_up())
      start(*c, {due, schedule_.next_request(tally), 0});
  }
}

void Worker::send_backlog() {
  while (!schedule_.backlog.empty()) {
    const Send what = schedule_.backlog.front();
    if (plan_.pacer == nullptr && now_ns_ - what.scheduled_ns > plan_.timeout_ns) {
      schedule_.backlog.pop_front();
      starving_ -= starving_ > 0 ? 1 : 0;
      tally.fail({.what = what}, "timeout before sending", now_ns_);
      continue;
    }
    if (idle_.empty()) {
      starving_ = schedule_.backlog.size();
      return;
    }
    schedule_.backlog.pop_front();
    const bool is_counted = tally.counts(what.scheduled_ns);
    if (starving_ > 0) {
      --starving_;
      tally.result.effort.starved += is_counted ? 1 : 0;
    } else if (is_counted) {
      tally.result.effort.late.record(now_ns_ - what.scheduled_ns);
    }
    // The connection used last is the warmest; the others stay free for bursts.
    Connection* c = idle_.back();
    idle_.pop_back();
    start(*c, what);
  }
}

void Worker::start(Connection& c, const Send& what) {
  const bool is_counted = !schedule_.is_open_loop() && tally.counts(what.scheduled_ns);
  if (is_counted) {
    schedule_.start_counted();
    ++tally.result.scheduled;
    if (c.socket != nullptr) tally.result.effort.late.record(now_ns_ - what.scheduled_ns);
  }
  c.sent = {.what = what, .of_class = tally.class_of(what.request), .started_ns = now_ns_};
  ++in_flight_;
  c.is_used = c.socket != nullptr;
  if (!c.is_used) {
    c.exchange->open();
    c.exchange->begin((*plan_.requests)[what.request]);
    connect(c);
  } else {
    c.exchange->begin((*plan_.requests)[what.request]);
    c.state = Connection::State::sending;
    send(c);
  }
}

void Worker::connect(Connection& c) {
  const int fd = ::socket(address_.family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) {
    fail(c, std::string("connect: ") + std::strerror(errno));
    return;
  }
  c.socket = std::make_unique<http::Socket>(http::Descriptor(fd), plan_.target.tls.get());
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  epoll_event event{};
  event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
  event.data.ptr = &c;
  const int rc = ::connect(fd, reinterpret_cast<const sockaddr*>(&address_.storage), address_.bytes);
  if (rc != 0 && errno != EINPROGRESS) {
    fail(c, std::string("connect: ") + std::strerror(errno));
    return;
  }
  c.state = Connection::State::connecting;
  ++connecting_;
  epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event);
}

void Worker::on_event(Connection& c, uint32_t events) {
  using State = Connection::State;
  if (c.socket == nullptr) return;
  if (c.state == State::connecting) {
    int error = 0;
    socklen_t bytes = sizeof error;
    getsockopt(c.socket->fd(), SOL_SOCKET, SO_ERROR, &error, &bytes);
    if (error != 0) {
      fail(c, std::string("connect: ") + std::strerror(error));
      return;
    }
    if ((events & EPOLLOUT) == 0) return;
    --connecting_;
    c.state = State::sending;
  }
  // A handshake may have to read before it can write, and the reverse.
  const bool any = c.socket->is_tls();
  if (c.state == State::sending && (any || (events & EPOLLOUT) != 0)) send(c);
  // An answer may come before the request is out (413); reading is right in both states.
  const bool busy = c.state == State::sending || c.state == State::receiving;
  if (busy && (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) receive(c);
  if (c.state == State::sending && any) send(c);
  if (c.state != State::idle) return;
  if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) return close(c);
  if (plan_.target.protocol == Protocol::grpc && (events & EPOLLIN) != 0) receive_idle(c);
}

// Between calls an HTTP/2 server still says things: pings, and that it is about to go.
void Worker::receive_idle(Connection& c) {
  for (;;) {
    const ssize_t n = c.socket->read(buffer_.data(), buffer_.size());
    if (n == http::Socket::kAgain) break;
    if (n <= 0) return close(c);
    try {
      c.exchange->receive({buffer_.data(), static_cast<size_t>(n)});
    } catch (const base::Error&) {
      return close(c);
    }
  }
  if (!c.exchange->answer().can_go_on) return close(c);
  const std::string_view rest = c.exchange->unsent();
  if (rest.empty()) return;
  if (const ssize_t n = c.socket->write(&rest, 1); n > 0) c.exchange->sent(static_cast<size_t>(n));
}

void Worker::send(Connection& c) {
  for (std::string_view rest = c.exchange->unsent(); !rest.empty(); rest = c.exchange->unsent()) {
    const ssize_t n = c.socket->write(&rest, 1);
    if (n == http::Socket::kAgain) return;
    if (n < 0) {
      receive(c);  // the server may have answered before it closed
      if (c.state == Connection::State::sending) fail_broken(c);
      return;
    }
    c.exchange->sent(static_cast<size_t>(n));
    tally.result.sent_bytes += n;
  }
  if (c.exchange->is_done()) return end(c);  // a connection that takes no more calls
  if (c.sent.sent_ns == 0) c.sent.sent_ns = base::SystemClock().now_ns();
  c.state = Connection::State::receiving;
}

void Worker::receive(Connection& c) {
  for (;;) {
    const ssize_t n = c.socket->read(buffer_.data(), buffer_.size());
    if (n == http::Socket::kAgain) return;
    if (n == http::Socket::kBroken) return fail_broken(c);
    try {
      if (n == http::Socket::kEof) {
        c.exchange->receive_end();
      } else {
        take(c, {buffer_.data(), static_cast<size_t>(n)});
      }
    } catch (const base::Error&) {
      return n == http::Socket::kEof ? fail_broken(c) : fail(c, "malformed answer");
    }
    if (c.exchange->is_done()) return end(c);
    if (n == http::Socket::kEof) return fail(c, "closed");
    // HTTP/2 answers frames while the call goes on: acknowledgements, room for more.
    if (plan_.target.protocol == Protocol::grpc) {
      send(c);
      if (c.state != Connection::State::receiving && c.state != Connection::State::sending) return;
    }
  }
}

// Received bytes, with the times at which parts of a stream came.
void Worker::take(Connection& c, std::string_view bytes) {
  const int64_t before = c.exchange->parts();
  c.exchange->receive(bytes);
  if (c.sent.first_ns != 0 && !plan_.target.streams) return;
  const int64_t at_ns = base::SystemClock().now_ns();
  if (c.sent.first_ns == 0 && c.exchange->has_begun()) c.sent.first_ns = at_ns;
  if (!plan_.target.streams || c.exchange->parts() == before) return;
  if (before == 0) c.sent.first_part_ns = at_ns;
  c.sent.last_part_ns = at_ns;
}

void Worker::end(Connection& c) {
  // The clock is read again: several answers may have been handled since this wake-up.
  now_ns_ = base::SystemClock().now_ns();
  const Answer answer = c.exchange->answer();
  if (!answer.error.empty()) return fail(c, answer.error, answer.can_go_on);
  if (plan_.target.streams) c.sent.parts = c.exchange->parts();
  tally.succeed(c.sent, answer, now_ns_);
  tell_pacer(c, true);
  finish(c, answer.can_go_on);
}

void Worker::tell_pacer(const Connection& c, bool success) {
  if (plan_.pacer != nullptr) plan_.pacer->answered(c.sent.what.query, now_ns_ - start_ns_, success);
}

void Worker::fail(Connection& c, const std::string& error_class, bool can_go_on) {
  if (plan_.target.streams) c.sent.parts = c.exchange->parts();
  tally.fail(c.sent, error_class, now_ns_);
  tell_pacer(c, false);
  finish(c, can_go_on);
}

/// The connection is gone. A server may close one that it has answered on while the next request is on its
/// way, and some do so without a word in the answer before. Such a request goes out again on a new
/// connection, once, as HTTP's clients do it; its time counts from when it was due.
void Worker::fail_broken(Connection& c) {
  if (c.is_used && !c.exchange->has_begun() && plan_.target.protocol == Protocol::http) {
    close(c);
    c.is_used = false;
    c.exchange->open();
    c.exchange->begin((*plan_.requests)[c.sent.what.request]);
    return connect(c);
  }
  const std::string distrust = c.socket->distrust();
  fail(c, distrust.empty() ? "closed" : "certificate: " + distrust);
}

// The connection is free again; in a closed loop its next request is due after the think time. A failed
// connection waits a moment, so that a dead server is not flooded with attempts.
void Worker::finish(Connection& c, bool can_go_on) {
  constexpr int64_t kRetryNs = 10 * base::kNsPerMs;
  --in_flight_;
  const bool lost = !c.exchange->is_done();
  if (can_go_on) {
    c.state = Connection::State::idle;
  } else {
    close(c);
  }
  if (schedule_.is_open_loop()) {
    idle_.push_back(&c);
  } else {
    thinking_.emplace(now_ns_ + std::max(plan_.think_ns, lost ? kRetryNs : 0), &c);
  }
}

void Worker::close(Connection& c) {
  if (c.state == Connection::State::connecting) --connecting_;
  c.socket.reset();
  c.state = Connection::State::closed;
}

// After an interruption what is under way may end; then it is as if it had not been sent.
void Worker::check_stop() {
  if (plan_.stop == nullptr || !plan_.stop->load(std::memory_order_relaxed)) return;
  if (stopped_ns_ == 0) {
    stopped_ns_ = now_ns_;
    for (const Send& what : schedule_.backlog) tally.forget(what);
    schedule_.backlog.clear();
    schedule_.stop();
    tally.end_at(std::min(tally.end_ns(), now_ns_));
    tally.result.is_interrupted = true;
  }
  if (now_ns_ < stopped_ns_ + kGraceNs) return;
  for (const auto& c : connections_) {
    if (c->state == Connection::State::closed || c->state == Connection::State::idle) continue;
    tally.forget(c->sent.what);
    --in_flight_;
    close(*c);
  }
}

void Worker::check_timeouts() {
  next_timeout_scan_ns_ =
      now_ns_ + kTimeoutScanNs + kTimeoutScanOfOneNs * static_cast<int64_t>(connections_.size());
  for (const auto& c : connections_) {
    const bool busy = c->state != Connection::State::closed && c->state != Connection::State::idle;
    const int64_t from_ns = plan_.pacer != nullptr ? c->sent.started_ns : c->sent.what.scheduled_ns;
    if (busy && now_ns_ - from_ns > plan_.timeout_ns) fail(*c, "timeout");
  }
}

// Room for so many sockets, and for what else the process has open.
void allow_connections(int64_t count) {
  constexpr int64_t kOthers = 64;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const auto wanted = static_cast<rlim_t>(count + kOthers);
  if (limit.rlim_cur >= wanted) return;
  const rlim_t had = limit.rlim_cur;
  limit.rlim_cur = std::min(wanted, limit.rlim_max);
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) limit.rlim_cur = had;
  if (limit.rlim_cur < wanted)
    base::fail(base::ErrorCode::exhausted, "process may open ", limit.rlim_cur, " files, ", count,
               " connections need ", wanted, ": raise it (ulimit -n)");
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
  allow_connections(connections);
  const Address address = probe(plan.target.host, plan.target.port);
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
  // Answers are counted until the end of a thread's window. A quota of requests can end it before the last
  // answer is there.
  int64_t ended = window.counted_from_ns;
  LoadResult result;
  for (const auto& w : workers) {
    if (w->failure) std::rethrow_exception(w->failure);
    result.merge(w->tally.result);
    ended = std::max(ended, w->tally.end_ns());
  }
  result.concurrency = plan.concurrency;
  result.offered_rate = plan.rate;
  result.window_s = std::max(1e-9, static_cast<double>(ended - window.counted_from_ns) / 1e9);
  // Threads of one run have the same intervals: only those of a pacer, which has one thread, become longer.
  result.interval_ns = workers.front()->tally.result.interval_ns;
  result.widen_intervals(ended - window.counted_from_ns);
  // Intervals in which nothing happened count as well.
  // A last interval of less than half is left out, but where a trace ends by itself, in which it may hold the
  // last answers.
  const double intervals = result.window_s * 1e9 / static_cast<double>(result.interval_ns);
  const double kept = plan.pacer ? std::floor(intervals) + 1 : std::max(1.0, std::round(intervals));
  result.intervals.resize(static_cast<size_t>(kept));
  return result;
}

}  // namespace trireme::load
