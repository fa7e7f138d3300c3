// Messages of a gRPC call as they come: length-prefixed, maybe compressed.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string_view>

#include "http/coding.h"
#include "http/pace.h"
#include "serve/grpc/grpc_handler.h"

namespace trireme::serve {

/// Belongs to the connection's thread.
class GrpcInflow {
 public:
  static constexpr size_t kPrefixBytes = 5;

  /// A message has at most so many bytes, as it is sent and when it is inflated.
  explicit GrpcInflow(size_t max_message_bytes);
  void set_coding(http::Coding coding) { coding_ = coding; }

  /// Where the rest of the message within may be received in place; empty: nowhere.
  std::span<char> room();
  /// Gives the handler its messages as they become whole, until `is_over`, which it may bring about. What
  /// comes while held is kept. Throws for what is malformed or too long.
  void read(std::string_view bytes, GrpcHandler* handler, const bool& is_over);
  /// A message has begun and is not whole.
  bool is_within() const { return prefix_bytes_ > 0; }
  /// The client owes the rest of a message, or all there is to come if it `owes_all`, and sends it too
  /// slowly. Called now and then; while held, no time passes for the client.
  bool is_late(const http::PaceLimits& limits, int64_t now_ns, bool owes_all);

  /// The client has sent all, though not all may have been read.
  void end() { has_ended_ = true; }
  bool has_ended() const { return has_ended_; }

  /// The handler wants no message now.
  void set_unwanted(bool on) { is_unwanted_ = on; }
  bool is_unwanted() const { return is_unwanted_; }
  bool is_held() const { return is_held_; }
  void hold() { is_held_ = true; }
  /// Ends the hold; what was kept is to be read.
  http::Bytes release();
  /// Frees the message within.
  void drop() { message_ = http::Bytes(); }

 private:
  void begin(std::string_view rest, GrpcHandler& handler);
  void take(GrpcHandler& handler);
  size_t most_bytes(const GrpcHandler& handler) const;

  const size_t max_message_bytes_;
  http::Coding coding_ = http::Coding::identity;
  std::array<char, kPrefixBytes> prefix_{};
  size_t prefix_bytes_ = 0;   ///< kPrefixBytes: within a message
  size_t message_bytes_ = 0;  ///< of the message within
  http::Bytes message_;
  bool is_held_ = false, is_unwanted_ = false, has_ended_ = false;
  http::Bytes backlog_;  ///< received while held
  http::Pace sending_;
  uint64_t received_bytes_ = 0;
};

}  // namespace trireme::serve
