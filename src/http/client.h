// A small blocking HTTP/1.1 client with a kept-alive connection: tests, tools, and control calls of the load
// generator.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "http/parser.h"

namespace trireme::http {

using HeaderList = std::vector<std::pair<std::string, std::string>>;

/// Pieces of `http://host:port/path?query`.
struct Url {
  std::string host;
  uint16_t port = 80;
  std::string target = "/";
  std::string scheme = "http";

  /// Accepts a missing scheme and `[::1]` hosts. Throws invalid_argument for a scheme that is none of these;
  /// the first is the one that a missing scheme stands for. The port of https is 443 if none is given.
  static Url parse(std::string_view url, std::span<const std::string_view> schemes = kPlain);
  /// host[:port] as the Host header wants it.
  std::string authority() const;

  static constexpr std::array<std::string_view, 1> kPlain = {"http"};
};

/// One connection, used by one thread. Errors of the network are thrown as unavailable.
class Client {
 public:
  Client(std::string host, uint16_t port, std::chrono::milliseconds timeout = std::chrono::seconds(30));
  ~Client();
  Client(Client&&) noexcept;
  Client& operator=(Client&&) noexcept;

  /// Sends one request and waits for its response. Connects if needed; a kept connection that the server has
  /// closed meanwhile is replaced once. Content-Length and Host are added.
  Received request(std::string_view method, std::string_view target, std::string_view body = {},
                   const HeaderList& headers = {});
  /// What the next requests may take. Beyond it they throw unavailable, and the connection is closed.
  struct Bounds {
    std::chrono::steady_clock::time_point until = std::chrono::steady_clock::time_point::max();
    std::chrono::milliseconds connecting{INT32_MAX};  ///< to each address; the client's timeout, if shorter
    size_t body_bytes = size_t{1} << 30;              ///< of an answer
    std::function<bool()> is_wanted = {};             ///< asked while it waits; null: it is
  };
  void set_bounds(Bounds bounds);
  /// Of a request that threw: its answer as far as it came; status 0: nothing did.
  const Received& unfinished() const;
  Received get(std::string_view target) { return request("GET", target); }
  Received post(std::string_view target, std::string_view body, const HeaderList& headers = {}) {
    return request("POST", target, body, headers);
  }

  // For tests that speak raw bytes.
  void connect();
  void send_raw(std::string_view bytes);
  /// Reads the next response. Throws unavailable at the end of the connection or after the timeout.
  Received receive(bool head_request = false);
  /// True if the server closes within the timeout; skips bytes that come first.
  bool wait_closed();
  void shutdown_send();
  void close();
  bool connected() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Opens a TCP connection with TCP_NODELAY. Throws unavailable. `nonblocking`: returns while connecting; else
/// each address of the host has `timeout`, 0: the system's own of two minutes.
int connect_to(const std::string& host, uint16_t port, bool nonblocking,
               std::chrono::milliseconds timeout = {});

/// Request bytes up to and including the blank line.
std::string request_head(std::string_view method, std::string_view target, std::string_view authority,
                         size_t body_bytes, const HeaderList& headers);

}  // namespace trireme::http
