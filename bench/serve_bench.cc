// Measures what the kernel alone costs to pass requests: `bench_serve REQUEST_BYTES ANSWER_BYTES COUNT
// CONNECTIONS [CLIENT_CPU,...]` receives COUNT bodies over loopback on CONNECTIONS connections, each into its
// connection's buffer, answers each, and prints in one JSON line the receiving threads' CPU microseconds per
// request. They use one thread per allowed CPU. This is the lower bound for the front end in bench/serve.py.
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <ctime>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/machine/cpu_info.h"
#include "base/error.h"

namespace {

using trireme::base::check;

struct Exchange {
  size_t request_bytes = 0, answer_bytes = 0;
  int count = 0, connections = 1;
};

/// One end of a connection: receives `in.size()` bytes, sends `out.size()` bytes, and starts again.
struct End {
  int fd = -1;
  std::vector<char> in, out;
  size_t received = 0, sent = 0;

  End(int socket, size_t in_bytes, size_t out_bytes) : fd(socket), in(in_bytes), out(out_bytes, 'x') {
    const int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    wake_at(in_bytes);
    fcntl(fd, F_SETFL, O_NONBLOCK);
  }
  /// Lets one wake-up deliver all bytes; if the kernel wakes earlier, for lack of memory, more follow.
  void wake_at(size_t bytes) {
    const int low = static_cast<int>(bytes);
    if (low != std::exchange(low_, low)) setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &low, sizeof low);
  }
  /// Returns true once the whole message has been received.
  bool receive() {
    const ssize_t got = recv(fd, in.data() + received, in.size() - received, 0);
    check(got != 0, "the other end has gone");
    if (got > 0) received += static_cast<size_t>(got);
    const bool is_whole = received == in.size();
    if (is_whole) received = 0;
    wake_at(in.size() - received);
    return is_whole;
  }
  /// Returns true once the whole message has been sent.
  bool send_some() {
    while (sent < out.size()) {
      const ssize_t put = send(fd, out.data() + sent, out.size() - sent, MSG_NOSIGNAL);
      if (put <= 0) return false;
      sent += static_cast<size_t>(put);
    }
    sent = 0;
    return true;
  }

 private:
  int low_ = 1;
};

class Poll {
 public:
  explicit Poll(std::vector<std::unique_ptr<End>>& ends) : fd_(epoll_create1(EPOLL_CLOEXEC)) {
    for (const auto& end : ends) {
      epoll_event event{.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data = {.ptr = end.get()}};
      epoll_ctl(fd_, EPOLL_CTL_ADD, end->fd, &event);
    }
  }
  ~Poll() { close(fd_); }
  Poll(const Poll&) = delete;
  Poll& operator=(const Poll&) = delete;
  /// Calls `on_event(end, events)` for each connection that is ready.
  template <class OnEvent>
  void wait(OnEvent on_event) {
    std::array<epoll_event, 64> events;
    const int ready = epoll_wait(fd_, events.data(), static_cast<int>(events.size()), -1);
    for (int i = 0; i < ready; ++i) {
      const epoll_event& e = events[static_cast<size_t>(i)];
      on_event(*static_cast<End*>(e.data.ptr), e.events);
    }
  }

 private:
  int fd_;
};

/// A client: sends `count` bodies in all on its connections, the next on each when the last is answered.
int client(const sockaddr_in& address, const Exchange& exchange) {
  std::vector<std::unique_ptr<End>> ends;
  for (int i = 0; i < exchange.connections; ++i) {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return 1;
    ends.push_back(std::make_unique<End>(fd, exchange.answer_bytes, exchange.request_bytes));
  }
  Poll poll(ends);
  int begun = 0, done = 0;
  std::vector<End*> idle;
  for (const auto& end : ends) {
    if (begun++ < exchange.count) end->send_some();
  }
  while (done < exchange.count) {
    poll.wait([&](End& end, uint32_t events) {
      if ((events & EPOLLOUT) != 0 && end.sent > 0) end.send_some();
      if ((events & EPOLLIN) == 0 || !end.receive()) return;
      ++done;
      if (begun++ < exchange.count) end.send_some();
    });
  }
  return 0;
}

/// Serves its connections until their clients have closed them.
void serve(std::vector<std::unique_ptr<End>> ends) {
  Poll poll(ends);
  size_t open = ends.size();
  while (open > 0) {
    poll.wait([&](End& end, uint32_t events) {
      if (end.fd < 0) return;
      if ((events & EPOLLRDHUP) != 0) {
        close(std::exchange(end.fd, -1));
        --open;
      } else if ((events & EPOLLIN) != 0 && end.receive()) {
        check(end.send_some(), "an answer does not fit the socket");
      }
    });
  }
}

std::vector<int> numbers(const char* text) {
  std::vector<int> list;
  std::stringstream words(text);
  for (std::string word; std::getline(words, word, ',');) list.push_back(std::atoi(word.c_str()));
  return list;
}

double process_cpu_us() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_nsec) / 1e3;
}

void start_client(int cpu, const sockaddr_in& address, const Exchange& share) {
  if (fork() != 0) return;
  if (cpu >= 0) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(static_cast<size_t>(cpu), &set);
    sched_setaffinity(0, sizeof set, &set);
  }
  _exit(client(address, share));
}

/// CPU microseconds per request, summed over all receiving threads.
double measure(const Exchange& exchange, const std::vector<int>& client_cpus) {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof address;
  bind(listener, reinterpret_cast<sockaddr*>(&address), bytes);
  listen(listener, exchange.connections);
  getsockname(listener, reinterpret_cast<sockaddr*>(&address), &bytes);
  const int clients = std::min<int>(exchange.connections, static_cast<int>(client_cpus.size()));
  for (int i = 0; i < clients; ++i) {
    Exchange share = exchange;
    share.count = exchange.count / clients;
    share.connections = exchange.connections * (i + 1) / clients - exchange.connections * i / clients;
    start_client(client_cpus[static_cast<size_t>(i)], address, share);
  }
  const int threads = std::min(exchange.connections, trireme::base::read_cpu_info().threads());
  std::vector<std::vector<std::unique_ptr<End>>> shares(static_cast<size_t>(threads));
  for (int i = 0; i < exchange.connections; ++i) {
    shares[static_cast<size_t>(i % threads)].push_back(std::make_unique<End>(
        accept(listener, nullptr, nullptr), exchange.request_bytes, exchange.answer_bytes));
  }
  const double start = process_cpu_us();
  std::vector<std::thread> team;
  for (auto& share : shares) team.emplace_back(serve, std::move(share));
  for (std::thread& thread : team) thread.join();
  const double us = (process_cpu_us() - start) / (exchange.count / clients * clients);
  bool is_well = true;
  for (int status = 0; wait(&status) > 0;) is_well = is_well && status == 0;
  check(is_well, "a client failed");
  return us;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) {
    std::cerr << "usage: bench_serve REQUEST_BYTES ANSWER_BYTES COUNT CONNECTIONS [CLIENT_CPU,...]\n";
    return 2;
  }
  const Exchange exchange{std::strtoul(argv[1], nullptr, 10), std::strtoul(argv[2], nullptr, 10),
                          std::atoi(argv[3]), std::atoi(argv[4])};
  const double us = measure(exchange, argc > 5 ? numbers(argv[5]) : std::vector<int>{-1});
  std::cout << "{\"cpu_us\": " << us << "}\n";
  return 0;
}
