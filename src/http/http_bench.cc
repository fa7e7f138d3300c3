// Measures the HTTP server over loopback: round trips, pipelining, large bodies, replies of other threads.
#include <benchmark/benchmark.h>

#include <string>
#include <thread>

#include "base/threads/bounded_queue.h"
#include "http/client.h"
#include "http/http2/http2_session.h"
#include "http/parser.h"
#include "http/server.h"
#include "http/socket.h"

namespace trireme::http {
namespace {

ServerOptions local() {
  ServerOptions o;
  o.host = "127.0.0.1";
  o.threads = 1;
  return o;
}

void answer(Request&&, Reply reply) { reply.send(text_response(200, "ok")); }

// Latency: one request and one answer at a time on one connection. The bound is a loopback round trip of two
// small messages.
void round_trip(benchmark::State& state) {
  Server server(local(), answer);
  Client client("127.0.0.1", server.port());
  for (auto _ : state) benchmark::DoNotOptimize(client.get("/"));
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(round_trip)->UseRealTime();

// What one wake-up of the server can carry: requests sent together, answers gathered in few writes.
void pipelined(benchmark::State& state) {
  Server server(local(), answer);
  Client client("127.0.0.1", server.port());
  const auto depth = static_cast<int>(state.range(0));
  std::string bytes;
  for (int i = 0; i < depth; ++i) bytes += request_head("GET", "/", "h", 0, {});
  for (auto _ : state) {
    client.send_raw(bytes);
    for (int i = 0; i < depth; ++i) benchmark::DoNotOptimize(client.receive());
  }
  state.SetItemsProcessed(state.iterations() * depth);
}
BENCHMARK(pipelined)->Arg(16)->Arg(256)->UseRealTime();

// An image tensor in (1 x 3 x 224 x 224 f32), a small answer out.
void large_body(benchmark::State& state) {
  Server server(local(), answer);
  Client client("127.0.0.1", server.port());
  const std::string body(static_cast<size_t>(state.range(0)), 'x');
  for (auto _ : state) benchmark::DoNotOptimize(client.post("/", body));
  state.SetBytesProcessed(state.iterations() * state.range(0));
}
BENCHMARK(large_body)->Arg(602112)->UseRealTime();

// The cost of HTTP/2 itself for such a body in frames of 16 KiB, without the socket and copies: the bytes of
// the body are already in place, and the headers of its frames are filled in.
class Body final : public Http2Stream {
 public:
  explicit Body(std::span<char> place) : place_(place) {}
  void on_field(std::string_view, std::string_view) override {}
  void on_fields_end(bool) override {}
  std::span<char> room() override { return place_; }
  void on_data(std::string_view bytes) override { place_ = place_.subspan(bytes.size()); }
  void on_end() override { has_ended = true; }
  void on_close() override {}
  bool has_ended = false;

 private:
  std::span<char> place_;
};

class Bodies final : public Http2Owner {
 public:
  explicit Bodies(size_t bytes) : place(bytes), session({}, *this) {}
  std::shared_ptr<Http2Stream> open_stream() override { return last = std::make_shared<Body>(place); }
  void on_output() override {}
  std::vector<char> place;
  std::shared_ptr<Body> last;
  Http2Session session;
};

std::string frame_head(size_t bytes, char type, char flags, uint32_t stream) {
  const auto byte = [](size_t v, int shift) { return static_cast<char>(v >> shift & 0xff); };
  return {byte(bytes, 16),  byte(bytes, 8),   byte(bytes, 0),  type,           flags,
          byte(stream, 24), byte(stream, 16), byte(stream, 8), byte(stream, 0)};
}

void http2_large_body(benchmark::State& state) {
  constexpr size_t kFrame = 16384;
  const auto bytes = static_cast<size_t>(state.range(0));
  Bodies side(bytes);
  side.session.receive("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame_head(0, 4, 0, 0), 1);
  Output settings;
  side.session.send(settings, SIZE_MAX, true);
  side.session.receive(frame_head(0, 4, 1, 0), 1);  // acknowledges the server's settings
  std::array<iovec, 132> views;
  std::array<char, kFrame> spill;
  uint32_t stream = 1;
  for (auto _ : state) {
    const std::string fields("\x83\x86\x84\x41\x01h", 6);  // static table: POST, http, /; authority h
    side.session.receive(frame_head(fields.size(), 1, 4, stream) + fields + frame_head(kFrame, 0, 0, stream),
                         1);
    size_t left = bytes;
    while (!side.last->has_ended) {
      const size_t count = side.session.scatter(views, spill);
      if (count == 0) return state.SkipWithError("the body has no place");
      size_t here = 0;
      for (size_t i = 0; i + 1 < count; ++i) {
        here += views[i].iov_len;
        if (views[i].iov_len != 9) {
          left -= views[i].iov_len;
          continue;
        }
        const std::string head = frame_head(std::min(left, kFrame), 0, left <= kFrame ? 1 : 0, stream);
        std::copy(head.begin(), head.end(), static_cast<char*>(views[i].iov_base));
      }
      side.session.receive_scattered(here, 1);
    }
    const std::array<Http2Field, 1> answer = {{{":status", "200"}}};
    side.session.streams().respond(*side.last, answer, true);
    Output out;
    side.session.send(out, SIZE_MAX, true);
    stream += 2;
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(http2_large_body)->Arg(602112);

// The path of an inference: the handler hands the reply to another thread, which answers.
void answer_from_another_thread(benchmark::State& state) {
  base::BoundedQueue<Reply> queue(64);
  std::thread worker([&] {
    while (auto reply = queue.pop()) reply->send(text_response(200, "ok"));
  });
  Server server(local(), [&](Request&&, Reply reply) { queue.push(std::move(reply)); });
  Client client("127.0.0.1", server.port());
  for (auto _ : state) benchmark::DoNotOptimize(client.get("/"));
  queue.close();
  worker.join();
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(answer_from_another_thread)->UseRealTime();

void parse_request(benchmark::State& state) {
  RequestParser parser({});
  const std::string bytes = request_head("POST", "/v2/models/encoder/infer", "localhost:8000", 0,
                                         {{"Content-Type", "application/octet-stream"},
                                          {"Inference-Header-Content-Length", "120"},
                                          {"Accept", "*/*"}});
  for (auto _ : state) {
    parser.feed(bytes);
    benchmark::DoNotOptimize(parser.take());
  }
}
BENCHMARK(parse_request);

}  // namespace
}  // namespace trireme::http
