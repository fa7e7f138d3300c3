// What an attack on a server costs it: processor time of its one loop and memory of the process, for each
// byte that was sent.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <string>
#include <string_view>
#include <thread>

namespace trireme::tests {

/// The processor time of a thread that others ask for.
class ThreadClock {
 public:
  /// On the thread.
  void note() {
    clockid_t id = 0;
    if (is_known_.load() || pthread_getcpuclockid(pthread_self(), &id) != 0) return;
    id_ = id;
    is_known_.store(true);
  }
  bool is_known() const { return is_known_.load(); }
  double seconds() const {
    timespec now{};
    clock_gettime(id_, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
  }
  /// Once the thread has had nothing to do for a while.
  double settled_seconds() const {
    double before = -1, now = seconds();
    for (int i = 0; i < 200 && now - before > 1e-3; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      before = now, now = seconds();
    }
    return now;
  }

 private:
  std::atomic<bool> is_known_{false};
  clockid_t id_ = 0;
};

/// Of the whole heap, in use now.
double heap_bytes();

/// A client that sends what it is told and forgets what it gets, or reads nothing.
class Attacker {
 public:
  explicit Attacker(uint16_t port, bool reads = true, int receive_bytes = 0) : reads_(reads) {
    fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (receive_bytes > 0) setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof receive_bytes);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(port);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    is_open_ = ::connect(fd_, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0;
    const int on = 1;
    setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    fcntl(fd_, F_SETFL, fcntl(fd_, F_GETFL) | O_NONBLOCK);
  }
  ~Attacker() { ::close(fd_); }
  Attacker(const Attacker&) = delete;
  Attacker& operator=(const Attacker&) = delete;

  /// Sends all of it, at most `piece` bytes a call; false once the server has ended the connection, or takes
  /// nothing for two seconds.
  bool send(std::string_view bytes, size_t piece = SIZE_MAX) {
    while (!bytes.empty() && is_open_) {
      if (reads_) read(1 << 20);
      const ssize_t sent = ::send(fd_, bytes.data(), std::min(piece, bytes.size()), MSG_NOSIGNAL);
      if (sent > 0) {
        sent_bytes_ += static_cast<size_t>(sent), ++sends_;
        bytes.remove_prefix(static_cast<size_t>(sent));
      } else if (errno == EAGAIN) {
        pollfd wait{fd_, static_cast<short>(POLLOUT | (reads_ ? POLLIN : 0)), 0};
        if (::poll(&wait, 1, 2000) <= 0) return false;
      } else {
        is_open_ = false;
      }
    }
    return is_open_;
  }
  /// Reads and forgets what has come, at most about so much; gives the bytes.
  size_t read(size_t most) {
    size_t total = 0;
    char buffer[16384];
    while (total < most) {
      const ssize_t got = ::recv(fd_, buffer, sizeof buffer, 0);
      if (got <= 0) {
        is_open_ &= got < 0 && errno == EAGAIN;
        break;
      }
      total += static_cast<size_t>(got);
      last_.append(buffer, static_cast<size_t>(got));
      if (last_.size() > 4096) last_.erase(0, last_.size() - 2048);
    }
    return total;
  }
  /// Reads until the server ends the connection; false: it does not within so long.
  bool is_ended_within(int ms) {
    for (int waited = 0; is_open_ && waited < ms; waited += 20) {
      pollfd wait{fd_, POLLIN, 0};
      ::poll(&wait, 1, 20);
      read(SIZE_MAX);
    }
    return !is_open_;
  }
  bool is_open() const { return is_open_; }
  size_t sent_bytes() const { return sent_bytes_; }
  size_t sends() const { return sends_; }
  /// The end of what came.
  const std::string& last() const { return last_; }

 private:
  int fd_ = -1;
  bool reads_, is_open_ = false;
  size_t sent_bytes_ = 0, sends_ = 0;
  std::string last_;
};

/// What small honest requests cost: one byte of many in one packet, and what a packet costs besides.
struct HonestCost {
  double byte_s = 0, packet_s = 0;
};

inline HonestCost honest_cost(uint16_t port, const ThreadClock& clock, std::string_view begin,
                              std::string_view request) {
  Attacker client(port);
  client.send(begin);
  client.send(request);
  while (client.read(1) == 0 && client.is_open()) std::this_thread::yield();
  std::string many;
  while (many.size() < 16384) many += request;
  HonestCost cost;
  const double at_first = clock.settled_seconds();
  size_t bytes = 0;
  for (int i = 0; i < 64; ++i, bytes += many.size()) client.send(many);
  const double behind = clock.settled_seconds();
  cost.byte_s = (behind - at_first) / static_cast<double>(bytes);
  constexpr int kPackets = 500;
  for (int i = 0; i < kPackets; ++i) {
    client.send(request);
    while (client.read(SIZE_MAX) == 0 && client.is_open()) std::this_thread::yield();
  }
  cost.packet_s = (clock.settled_seconds() - behind) / kPackets;
  return cost;
}

/// Around one attack: `spent()` when it is over.
class AttackMeter {
 public:
  explicit AttackMeter(const ThreadClock& clock)
      : clock_(clock), begin_s_(clock.settled_seconds()), begin_bytes_(heap_bytes()) {}
  /// Looks how much memory is in use; now and then during the attack.
  void look() { peak_bytes_ = std::max(peak_bytes_, heap_bytes() - begin_bytes_); }
  double cpu_s() {
    look();
    return clock_.settled_seconds() - begin_s_;
  }
  double peak_bytes() const { return peak_bytes_; }

 private:
  const ThreadClock& clock_;
  const double begin_s_, begin_bytes_;
  double peak_bytes_ = 0;
};

}  // namespace trireme::tests
