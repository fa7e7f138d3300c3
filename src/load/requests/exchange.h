// One connection's protocol, apart from its socket: a prepared request as bytes to send, received bytes as an
// answer.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "load/requests/target.h"

namespace trireme::load {

/// How a request ended.
struct Answer {
  std::string error = {};  // its class; empty: a success
  bool can_go_on = false;  // the connection takes another request
  int64_t body_bytes = 0;
};

class Exchange {
 public:
  virtual ~Exchange() = default;
  /// The connection is a new one.
  virtual void open() = 0;
  /// `request` must stay until the answer is done.
  virtual void begin(const std::string& request) = 0;
  virtual std::string_view unsent() = 0;
  virtual void sent(size_t bytes) = 0;
  /// Throws unavailable if the bytes are not of the protocol.
  virtual void receive(std::string_view bytes) = 0;
  /// The server has closed. Throws unavailable unless that ends the answer.
  virtual void receive_end() = 0;
  virtual bool is_done() const = 0;
  /// Whether anything of an answer has come.
  virtual bool has_begun() const = 0;
  /// Parts of a stream so far: events of an HTTP body that bring something, messages of a call.
  virtual int64_t parts() const = 0;
  /// Once it is done.
  virtual Answer answer() const = 0;
  /// The answer's body, where it was to be kept.
  virtual std::string body() const = 0;
};

/// `keeps_body`: else only its length is.
std::unique_ptr<Exchange> make_exchange(const Target& target, bool keeps_body = false);

}  // namespace trireme::load
