// Internal to the gRPC listener: one client connection that speaks HTTP/2, on its event loop.
#pragma once

#include <functional>
#include <memory>

#include "http/http2/http2_session.h"
#include "http/loop.h"
#include "http/loop_connection.h"
#include "http/outflow.h"
#include "http/socket.h"

namespace trireme::http {

/// What connections of one listener share.
struct Http2Service {
  Http2Limits limits;
  int64_t keepalive_ns = 7'200'000'000'000;      // of silence, then the client is asked whether it is there
  int64_t keepalive_answer_ns = 20'000'000'000;  // and has so long to answer
  /// What takes part in a new stream; `is_local`: of a peer with a loopback address.
  std::function<std::shared_ptr<Http2Stream>(Loop& loop, Http2Session& session, bool is_local)> open;
};

/// Reads, hands to the session, gathers what all streams have to say and writes it in one call.
class Http2Connection final : public LoopConnection, private Http2Owner {
 public:
  Http2Connection(Loop& loop, Descriptor fd, const Http2Service& service);
  ~Http2Connection() override;
  Http2Connection(const Http2Connection&) = delete;
  Http2Connection& operator=(const Http2Connection&) = delete;

  void on_events(uint32_t events) override;
  void advance() override;
  void check_deadline() override;
  void close() override;
  bool closed() const override { return session_ == nullptr; }

 private:
  std::shared_ptr<Http2Stream> open_stream() override;
  void on_output() override;
  bool read_some();
  bool notice_small_rest();
  void flush();
  void finish_turn();
  void discard_input();
  void check_end();
  void check_silence();

  Loop& loop_;
  const Http2Service& service_;
  Socket socket_;
  const bool is_local_;  // so is the peer
  Outflow out_;
  std::unique_ptr<Http2Session> session_;  // null: closed
  bool readable_ = true;                   // until a read says otherwise (edge-triggered)
  bool hung_up_ = false;
  bool advancing_ = false;
  bool lingering_ =
      false;  // nothing is sent any more; what comes is read so that the client gets our last words
  bool wakes_late_ = false;
  bool has_told_streams_ = false;  // that the server ends
  enum class Ending : uint8_t { no, announced, refusing } ending_ = Ending::no;
  int64_t opened_ns_, used_ns_, announced_ns_ = 0, linger_began_ns_ = 0, pinged_ns_ = 0;
};

}  // namespace trireme::http
