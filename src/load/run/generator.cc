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
#include "base/rng.h"
#include "http/client.h"
#include "http/socket.h"
#include "load/requests/exchange.h"

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

struct Window {
  int64_t start_ns, counted_from_ns, end_ns, interval_ns;
};

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
  Send what;             // the request, its time and its query
  bool is_used = false;  // it has carried an answer before
  size_t of_class = 0;   // of a mix
  int64_t started_ns = 0, sent_ns = 0, first_ns = 0;
  int64_t first_part_ns = 0, last_part_ns = 0;
};

class Worker {
 public:
  Worker(const LoadPlan& plan, const Address& address, const Window& window, int thread);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  void run();
  /// When the last request could be sent.
  int64_t end_ns() const { return end_ns_; }
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
  void receive_idle(Connection& c);
  void take(Connection& c, std::string_view bytes);
  void on_event(Connection& c, uint32_t events);
  void end(Connection& c);
  void succeed(Connection& c, const Answer& answer);
  void fail(Connection& c, const std::string& error_class, bool can_go_on = false);
  void fail_broken(Connection& c);
  void finish(Connection& c, bool can_go_on);
  void count_error(const Send& what, const std::string& error_class);
  void record(const Connection& c, const std::string& error_class);
  void check_timeouts();
  void check_stop();
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
  std::deque<Due> to_open_;   // due, but their connection must be made first
  std::deque<Send> backlog_;  // scheduled, waiting for a connection
  size_t starving_ = 0;       // of them, from the front: they have found none free
  int64_t in_flight_ = 0;
  int connecting_ = 0;
  int64_t stopped_ns_ = 0;  // 0: nobody asked to
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
      next_request_(plan.first_request + static_cast<size_t>(thread) * 7919),
      epoll_fd_(epoll_create1(EPOLL_CLOEXEC)),
      buffer_(size_t{256} << 10) {
  base::check(epoll_fd_ >= 0, "cannot create an epoll descriptor: errno ", errno);
  const int64_t wanted = open_loop() ? plan.connections : plan.concurrency;
  for (int64_t i = 0; i < share_of(wanted, plan.threads, thread); ++i) {
    auto c = std::make_unique<Connection>();
    c->exchange = make_exchange(plan.target);
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
    const int count = epoll_wait(epoll_fd_, events.data(), static_cast<int>(events.size()), 0);
    now_ns_ = base::SystemClock().now_ns();
    for (int i = 0; i < count; ++i) {
      const epoll_event& e = events[static_cast<size_t>(i)];
      on_event(*static_cast<Connection*>(e.data.ptr), e.events);
    }
  }
  const ThreadTimes after = ThreadTimes::now();
  const auto run_ns = static_cast<double>(std::max<int64_t>(1, now_ns_ - window_.start_ns));
  result.effort.busy_share = static_cast<double>(after.cpu_ns - before.cpu_ns) / run_ns;
  result.effort.waited_share = static_cast<double>(after.waited_ns - before.waited_ns) / run_ns;
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
    if (c->socket == nullptr) {
      to_open_.emplace_back(due, c);
    } else if (now_ns_ < end_ns_ && quota_ != 0) {
      start(*c, {due, next_request(), 0});
    }
  }
  for (; !to_open_.empty() && connecting_ < kMostConnecting; to_open_.pop_front()) {
    const auto [due, c] = to_open_.front();
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
  while (now_ns_ < end_ns_ && plan_.pacer->next_ns() <= since_start) {
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
      starving_ -= starving_ > 0 ? 1 : 0;
      count_error(what, "timeout before sending");
      if (plan_.records && counted(what.scheduled_ns))
        result.records.push_back({.scheduled_ns = what.scheduled_ns - window_.counted_from_ns,
                                  .ended_ns = now_ns_ - window_.counted_from_ns,
                                  .request = static_cast<uint32_t>(what.request),
                                  .error = "timeout before sending"});
      continue;
    }
    if (idle_.empty()) {
      starving_ = backlog_.size();
      return;
    }
    backlog_.pop_front();
    const bool is_counted = counted(what.scheduled_ns);
    if (starving_ > 0) {
      --starving_;
      result.effort.starved += is_counted ? 1 : 0;
    } else if (is_counted) {
      result.effort.late.record(now_ns_ - what.scheduled_ns);
    }
    // The connection used last is the warmest; the others stay free for bursts.
    Connection* c = idle_.back();
    idle_.pop_back();
    start(*c, what);
  }
}

size_t Worker::next_request() {
  const bool ordered = plan_.mix != nullptr && !plan_.mix->order.empty();
  ++result.taken;
  const size_t at = next_request_++ % (ordered ? plan_.mix->order.size() : plan_.requests->size());
  return ordered ? plan_.mix->order[at] : at;
}

void Worker::start(Connection& c, const Send& what) {
  const bool is_counted = !open_loop() && counted(what.scheduled_ns);
  if (is_counted) {
    if (quota_ > 0) --quota_;
    ++result.scheduled;
    if (c.socket != nullptr) result.effort.late.record(now_ns_ - what.scheduled_ns);
  }
  c.what = what;
  c.of_class = plan_.mix != nullptr && !plan_.mix->class_of.empty() ? plan_.mix->class_of[what.request] : 0;
  c.started_ns = now_ns_;
  c.sent_ns = c.first_ns = c.first_part_ns = c.last_part_ns = 0;
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
  epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &event);
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
    result.sent_bytes += n;
  }
  if (c.exchange->is_done()) return end(c);  // a connection that takes no more calls
  if (c.sent_ns == 0) c.sent_ns = base::SystemClock().now_ns();
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
  if (c.first_ns != 0 && !plan_.target.streams) return;
  const int64_t at_ns = base::SystemClock().now_ns();
  if (c.first_ns == 0 && c.exchange->has_begun()) c.first_ns = at_ns;
  if (!plan_.target.streams || c.exchange->parts() == before) return;
  if (before == 0) c.first_part_ns = at_ns;
  c.last_part_ns = at_ns;
}

Interval& Worker::interval_at(int64_t ns) {
  const auto at =
      static_cast<size_t>(std::max<int64_t>(0, (ns - window_.counted_from_ns) / window_.interval_ns));
  if (result.intervals.size() <= at) result.intervals.resize(at + 1);
  return result.intervals[at];
}

void Worker::end(Connection& c) {
  // The clock is read again: several answers may have been handled since this wake-up.
  now_ns_ = base::SystemClock().now_ns();
  const Answer answer = c.exchange->answer();
  if (answer.error.empty()) {
    succeed(c, answer);
  } else {
    fail(c, answer.error, answer.can_go_on);
  }
}

void Worker::succeed(Connection& c, const Answer& answer) {
  const int64_t scheduled_ns = c.what.scheduled_ns;
  if (counted(scheduled_ns)) {
    const int64_t latency_ns = now_ns_ - scheduled_ns;
    ++result.succeeded;
    if (!result.classes.empty()) result.classes[c.of_class].latency.record(latency_ns);
    result.latency.record(latency_ns);
    result.service.record(now_ns_ - c.started_ns);
    result.received_bytes += answer.body_bytes;
    result.send_ns += static_cast<double>(std::max<int64_t>(0, c.sent_ns - c.started_ns));
    result.receive_ns += static_cast<double>(c.first_ns > 0 ? now_ns_ - c.first_ns : 0);
    interval_at(scheduled_ns).latency.record(latency_ns);
    if (const int64_t parts = c.exchange->parts(); plan_.target.streams && parts > 0) {
      result.parts += parts;
      result.first_part.record(c.first_part_ns - scheduled_ns);
      if (parts > 1) result.between_parts.record((c.last_part_ns - c.first_part_ns) / (parts - 1));
    }
    record(c, "");
  }
  if (counted(now_ns_)) {
    ++result.completed_in_window;
    ++interval_at(now_ns_).completed;
  }
  tell_pacer(c, true);
  finish(c, answer.can_go_on);
}

void Worker::record(const Connection& c, const std::string& error_class) {
  if (!plan_.records) return;
  const auto since = [this](int64_t ns) { return ns == 0 ? 0 : ns - window_.counted_from_ns; };
  result.records.push_back({.scheduled_ns = since(c.what.scheduled_ns),
                            .sent_ns = since(c.started_ns),
                            .first_ns = since(c.first_ns),
                            .ended_ns = since(now_ns_),
                            .request = static_cast<uint32_t>(c.what.request),
                            .parts = static_cast<uint32_t>(plan_.target.streams ? c.exchange->parts() : 0),
                            .error = error_class});
}

void Worker::count_error(const Send& what, const std::string& error_class) {
  if (!counted(what.scheduled_ns)) return;
  ++result.errors[error_class];
  ++interval_at(what.scheduled_ns).errors;
  if (result.classes.empty()) return;
  const bool has_class = plan_.mix != nullptr && !plan_.mix->class_of.empty();
  ++result.classes[has_class ? plan_.mix->class_of[what.request] : 0].failed;
}

void Worker::tell_pacer(const Connection& c, bool success) {
  if (plan_.pacer != nullptr) plan_.pacer->answered(c.what.query, now_ns_ - window_.start_ns, success);
}

void Worker::fail(Connection& c, const std::string& error_class, bool can_go_on) {
  count_error(c.what, error_class);
  if (counted(c.what.scheduled_ns)) record(c, error_class);
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
    c.exchange->begin((*plan_.requests)[c.what.request]);
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
  if (open_loop()) {
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
    for (const Send& what : backlog_) result.scheduled -= counted(what.scheduled_ns) ? 1 : 0;
    backlog_.clear();
    end_ns_ = std::min(end_ns_, now_ns_);
    result.is_interrupted = true;
  }
  if (now_ns_ < stopped_ns_ + kGraceNs) return;
  for (const auto& c : connections_) {
    if (c->state == Connection::State::closed || c->state == Connection::State::idle) continue;
    result.scheduled -= counted(c->what.scheduled_ns) ? 1 : 0;
    --in_flight_;
    close(*c);
  }
}

void Worker::check_timeouts() {
  next_timeout_scan_ns_ =
      now_ns_ + kTimeoutScanNs + kTimeoutScanOfOneNs * static_cast<int64_t>(connections_.size());
  for (const auto& c : connections_) {
    const bool busy = c->state != Connection::State::closed && c->state != Connection::State::idle;
    const int64_t from_ns = plan_.pacer != nullptr ? c->started_ns : c->what.scheduled_ns;
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
  int64_t ended = std::min(base::SystemClock().now_ns(), window.end_ns);
  LoadResult result;
  for (const auto& w : workers) {
    if (w->failure) std::rethrow_exception(w->failure);
    result.merge(w->result);
    if (w->result.is_interrupted) ended = std::min(ended, w->end_ns());
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
