// What a client may cost on one HTTP/2 connection.
#pragma once

#include <cstddef>
#include <cstdint>

#include "http/pace.h"

namespace trireme::http {

struct Http2Limits {
  uint32_t max_streams = 1024;                 // open at once, told to the client
  uint32_t stream_window_bytes = 4u << 20;     // what a client may send ahead on a stream
  int32_t connection_window_bytes = 32 << 20;  // and on all of them
  uint32_t max_frame_bytes = 1u << 20;         // of a received frame
  uint32_t max_field_bytes = 16u << 10;        // of a request's header fields, 32 for each besides its text
  uint64_t resets_at_once = 10'000;            // RST_STREAM frames before the connection is ended, of the
                                               // client, or of ours for streams that failed,
  uint64_t resets_per_second = 1'000;          // and how fast they are forgiven
  uint64_t settings_at_once = 1'000;           // entries of SETTINGS frames, and frames: each may cost a pass
  uint64_t settings_per_second = 100;          // over all streams
  size_t max_unsent_bytes = size_t{256} << 20;        // of answers; with more, see Http2Streams::is_full()
  int ping_strikes = 2;                               // pings too early that are forgiven
  int64_t ping_interval_ns = 300'000'000'000;         // between pings without an answer from us in between,
  int64_t idle_ping_interval_ns = 7'200'000'000'000;  // and without a stream
  int64_t fields_ns = 10'000'000'000;                 // from the first of a request's fields to their end
  PaceLimits sending = {};  // of a client within a message; who is slower loses the call
  PaceLimits reading = {};  // of one whose window is shut before an answer; likewise
};

}  // namespace trireme::http
