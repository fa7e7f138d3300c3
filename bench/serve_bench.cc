// What the kernel alone takes to hand over a request: `bench_serve REQUEST_BYTES ANSWER_BYTES COUNT` receives
// COUNT bodies over loopback, each in one call into one buffer, answers each, and says in one JSON line
// the CPU microseconds a request of the receiving thread. The floor under bench/serve.py's front end.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <ctime>
#include <iostream>
#include <vector>

#include "base/error.h"

namespace {

struct Exchange {
  size_t request_bytes, answer_bytes;
  int count;
};

double thread_cpu_us() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_nsec) / 1e3;
}

bool send_all(int fd, const std::vector<char>& bytes) {
  for (size_t at = 0; at < bytes.size();) {
    const ssize_t sent = send(fd, bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
    if (sent <= 0) return false;
    at += static_cast<size_t>(sent);
  }
  return true;
}

/// The client: sends a body, waits for the answer, and again.
int client(const sockaddr_in& address, const Exchange& exchange) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return 1;
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  const std::vector<char> body(exchange.request_bytes, 'x');
  std::vector<char> answer(exchange.answer_bytes);
  for (int i = 0; i < exchange.count; ++i) {
    if (!send_all(fd, body)) return 1;
    if (recv(fd, answer.data(), answer.size(), MSG_WAITALL) <= 0) return 1;
  }
  close(fd);
  return 0;
}

/// CPU microseconds a request of the receiving side.
double receive(int fd, const Exchange& exchange) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  std::vector<char> body(exchange.request_bytes, '\0');
  const std::vector<char> answer(exchange.answer_bytes, 'a');
  const double start = thread_cpu_us();
  for (int i = 0; i < exchange.count; ++i) {
    const ssize_t got = recv(fd, body.data(), body.size(), MSG_WAITALL);
    trireme::base::check(got == static_cast<ssize_t>(body.size()), "the sender has gone");
    trireme::base::check(send_all(fd, answer), "the sender has gone");
  }
  return (thread_cpu_us() - start) / exchange.count;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::cerr << "usage: bench_serve REQUEST_BYTES ANSWER_BYTES COUNT [CLIENT_CPU]\n";
    return 2;
  }
  const Exchange exchange{std::strtoul(argv[1], nullptr, 10), std::strtoul(argv[2], nullptr, 10),
                          std::atoi(argv[3])};
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof address;
  bind(listener, reinterpret_cast<sockaddr*>(&address), bytes);
  listen(listener, 1);
  getsockname(listener, reinterpret_cast<sockaddr*>(&address), &bytes);
  const pid_t child = fork();
  if (child == 0) {
    if (argc > 4) {
      cpu_set_t set;
      CPU_ZERO(&set);
      CPU_SET(static_cast<size_t>(std::atoi(argv[4])), &set);
      sched_setaffinity(0, sizeof set, &set);
    }
    _exit(client(address, exchange));
  }
  const double us = receive(accept(listener, nullptr, nullptr), exchange);
  waitpid(child, nullptr, 0);
  std::cout << "{\"cpu_us\": " << us << "}\n";
  return 0;
}
