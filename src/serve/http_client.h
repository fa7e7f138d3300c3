// A small blocking HTTP/1.1 client with a kept-alive connection: tests, tools, and control calls of the load
// generator.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "serve/http_parser.h"

namespace trireme::serve {

using HttpHeaderList = std::vector<std::pair<std::string, std::string>>;

/// Pieces of `http://host:port/path?query`.
struct HttpUrl {
  std::string host;
  uint16_t port = 80;
  std::string target = "/";

  /// Accepts a missing scheme and `[::1]` hosts. Throws invalid_argument for anything but http.
  static HttpUrl parse(std::string_view url);
  /// host[:port] as the Host header wants it.
  std::string authority() const;
};

/// One connection, used by one thread. Errors of the network are thrown as unavailable.
class HttpClient {
 public:
  HttpClient(std::string host, uint16_t port, std::chrono::milliseconds timeout = std::chrono::seconds(30));
  ~HttpClient();
  HttpClient(HttpClient&&) noexcept;
  HttpClient& operator=(HttpClient&&) noexcept;

  /// Sends one request and waits for its response. Connects if needed; a kept connection that the server has
  /// closed meanwhile is replaced once. Content-Length and Host are added.
  HttpReceived request(std::string_view method, std::string_view target, std::string_view body = {},
                       const HttpHeaderList& headers = {});
  HttpReceived get(std::string_view target) { return request("GET", target); }
  HttpReceived post(std::string_view target, std::string_view body, const HttpHeaderList& headers = {}) {
    return request("POST", target, body, headers);
  }

  // For tests that speak raw bytes.
  void connect();
  void send_raw(std::string_view bytes);
  /// Reads the next response. Throws unavailable at the end of the connection or after the timeout.
  HttpReceived receive(bool head_request = false);
  /// True if the server closes within the timeout; skips bytes that come first.
  bool wait_closed();
  void shutdown_send();
  void close();
  bool connected() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Opens a TCP connection with TCP_NODELAY. Throws unavailable. `nonblocking`: returns while connecting.
int http_connect(const std::string& host, uint16_t port, bool nonblocking);

/// Request bytes up to and including the blank line.
std::string http_request_head(std::string_view method, std::string_view target, std::string_view authority,
                              size_t body_bytes, const HttpHeaderList& headers);

}  // namespace trireme::serve
