// What leaves a gRPC call: messages, then a status; and how much of it the client has not read.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string_view>
#include <vector>

#include "http/coding.h"
#include "http/http2/http2_streams.h"
#include "serve/grpc/grpc_status.h"

namespace trireme::serve {

/// Belongs to the connection's thread, but for framed().
class GrpcOutflow {
 public:
  /// Answers are compressed as the questions are, unless the client says what it reads and that is not among
  /// it. Before anything is framed.
  void choose_coding(http::Coding of_questions, std::string_view accepted);
  /// The message behind its length, compressed where that was chosen. Any thread.
  std::vector<http::BodyPart> framed(std::vector<http::BodyPart> message) const;

  void put(http::Http2Streams& streams, http::Http2Stream& stream, std::vector<http::BodyPart>&& framed);
  /// Without a message before it the status is the whole answer.
  void end(http::Http2Streams& streams, http::Http2Stream& stream, const GrpcStatus& status,
           http::Http2Fields&& trailers) const;

  /// Marks how far it is now.
  void mark() { marks_.push_back(put_bytes_); }
  /// So many bytes have left in all; gives the number of marks that they passed.
  size_t leave(uint64_t bytes);
  uint64_t left_bytes() const { return left_bytes_; }
  /// The client reads too slowly for more to be asked.
  bool is_unread() const { return is_unread_; }
  /// Looks anew whether that is so; true: it has changed.
  bool look();

 private:
  http::Coding coding_ = http::Coding::identity;
  bool has_answered_ = false, is_unread_ = false;
  uint64_t put_bytes_ = 0, left_bytes_ = 0;
  std::deque<uint64_t> marks_;
};

/// The coding that `grpc-encoding` names; none: it is not known.
std::optional<http::Coding> grpc_coding(std::string_view name);

}  // namespace trireme::serve
