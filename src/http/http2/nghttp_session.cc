// Calls of nghttp2, each with the handling of its failure.
#include "http/http2/nghttp_session.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "base/error.h"
#include "http/http2/nghttp_fields.h"

namespace trireme::http {
NghttpSession::NghttpSession(const Http2Limits& limits, const NghttpCallbacks& callbacks,
                             std::unique_ptr<Http2Memory> memory)
    : memory_(std::move(memory)), read_body_(callbacks.read_body) {
  nghttp2_option* option = nullptr;
  int failed = nghttp2_option_new(&option);
  if (failed == 0) {
    nghttp2_option_set_no_auto_window_update(option, 1);
    nghttp2_option_set_no_closed_streams(option, 1);
    nghttp2_option_set_stream_reset_rate_limit(option, limits.resets_at_once, limits.resets_per_second);
    failed = nghttp2_session_server_new3(&session_, callbacks.events, callbacks.user, option,
                                         memory_->functions());
    nghttp2_option_del(option);
  }
  base::check(failed == 0, "HTTP/2 session cannot be made: ", nghttp2_strerror(failed));
  const std::array<nghttp2_settings_entry, 5> settings = {{
      {NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, limits.max_streams},
      {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, limits.stream_window_bytes},
      {NGHTTP2_SETTINGS_MAX_FRAME_SIZE, limits.max_frame_bytes},
      {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, limits.max_field_bytes},
      {NGHTTP2_SETTINGS_NO_RFC7540_PRIORITIES, 1},
  }};
  nghttp2_submit_settings(session_, NGHTTP2_FLAG_NONE, settings.data(), settings.size());
  nghttp2_session_set_local_window_size(session_, NGHTTP2_FLAG_NONE, 0, limits.connection_window_bytes);
}

bool NghttpSession::is_over() const {
  return is_lost() || (nghttp2_session_want_read(session_) == 0 && nghttp2_session_want_write(session_) == 0);
}

void NghttpSession::receive(std::string_view bytes) {
  if (is_lost()) return;
  const ssize_t used =
      nghttp2_session_mem_recv(session_, reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  is_lost_ |= used < 0;
}

std::string_view NghttpSession::next_to_send() {
  if (is_lost()) return {};
  const uint8_t* data = nullptr;
  const ssize_t bytes = nghttp2_session_mem_send(session_, &data);
  is_lost_ |= bytes < 0;
  if (bytes <= 0) return {};
  return {reinterpret_cast<const char*>(data), static_cast<size_t>(bytes)};
}

Http2Stream* NghttpSession::stream_of(int32_t id) const {
  if (is_lost()) return nullptr;
  return static_cast<Http2Stream*>(nghttp2_session_get_stream_user_data(session_, id));
}

void NghttpSession::set_stream(int32_t id, Http2Stream* stream) {
  if (!is_lost()) nghttp2_session_set_stream_user_data(session_, id, stream);
}

void NghttpSession::respond(int32_t id, std::span<const Http2Field> fields, Http2Stream* body) {
  std::array<nghttp2_nv, 16> pairs;
  base::check(fields.size() <= pairs.size(), "an HTTP/2 answer has too many fields: ", fields.size());
  if (is_lost()) return;
  for (size_t i = 0; i < fields.size(); ++i) pairs[i] = pair_of(fields[i]);
  nghttp2_data_provider provider{};
  provider.source.ptr = body;
  provider.read_callback = read_body_;
  is_lost_ |= nghttp2_is_fatal(nghttp2_submit_response(session_, id, pairs.data(), fields.size(),
                                                       body == nullptr ? nullptr : &provider)) != 0;
}

void NghttpSession::submit_trailers(int32_t id, const Http2Fields& trailers) {
  if (is_lost()) return;
  std::vector<nghttp2_nv> pairs;
  pairs.reserve(trailers.size());
  for (const auto& [name, value] : trailers) pairs.push_back(pair_of({name, value}));
  nghttp2_submit_trailer(session_, id, pairs.data(), pairs.size());
}

void NghttpSession::resume(int32_t id) {
  if (!is_lost()) nghttp2_session_resume_data(session_, id);
}

void NghttpSession::reset(int32_t id, uint32_t code) {
  if (!is_lost()) is_lost_ |= nghttp2_submit_rst_stream(session_, NGHTTP2_FLAG_NONE, id, code) != 0;
}

void NghttpSession::consume(int32_t id, size_t bytes, bool is_held) {
  if (id != consumed_id_) settle_windows();
  consumed_bytes_ += bytes;
  if (is_held) return;
  consumed_id_ = id;
  stream_consumed_bytes_ += bytes;
}

void NghttpSession::consume_held(int32_t id, size_t bytes) {
  if (!is_lost()) nghttp2_session_consume_stream(session_, id, bytes);
}

void NghttpSession::settle_windows() {
  if (is_lost()) return;
  if (consumed_bytes_ > 0) nghttp2_session_consume_connection(session_, std::exchange(consumed_bytes_, 0));
  if (stream_consumed_bytes_ > 0)
    nghttp2_session_consume_stream(session_, consumed_id_, std::exchange(stream_consumed_bytes_, 0));
}

size_t NghttpSession::open_bytes(int32_t id) const {
  if (is_lost()) return 0;
  const auto left = [](int32_t window) { return static_cast<size_t>(std::max(window, 0)); };
  return std::min(left(nghttp2_session_get_stream_local_window_size(session_, id)),
                  left(nghttp2_session_get_local_window_size(session_)));
}

bool NghttpSession::is_shut(int32_t id) const {
  if (is_lost()) return false;
  return (id == 0 ? nghttp2_session_get_remote_window_size(session_)
                  : nghttp2_session_get_stream_remote_window_size(session_, id)) <= 0;
}

void NghttpSession::ping() {
  if (!is_lost()) nghttp2_submit_ping(session_, NGHTTP2_FLAG_NONE, nullptr);
}

void NghttpSession::announce_end() {
  if (!is_lost()) nghttp2_submit_shutdown_notice(session_);
}

void NghttpSession::end(uint32_t error, std::string_view why) {
  if (is_lost()) return;
  nghttp2_submit_goaway(session_, NGHTTP2_FLAG_NONE, nghttp2_session_get_last_proc_stream_id(session_), error,
                        reinterpret_cast<const uint8_t*>(why.data()), why.size());
}

}  // namespace trireme::http
