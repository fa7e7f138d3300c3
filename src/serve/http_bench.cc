// The HTTP server over loopback: round trips, pipelined runs, large bodies, and answers from another thread.
#include <benchmark/benchmark.h>

#include <string>
#include <thread>

#include "base/bounded_queue.h"
#include "serve/http_client.h"
#include "serve/http_parser.h"
#include "serve/http_server.h"

namespace trireme::serve {
namespace {

HttpServerOptions local() {
  HttpServerOptions o;
  o.host = "127.0.0.1";
  o.threads = 1;
  return o;
}

void answer(HttpRequest&&, HttpReply reply) { reply.send(http_text(200, "ok")); }

// One request, one answer, one connection: latency. The bound is the loopback round trip of two small
// messages.
void round_trip(benchmark::State& state) {
  HttpServer server(local(), answer);
  HttpClient client("127.0.0.1", server.port());
  for (auto _ : state) benchmark::DoNotOptimize(client.get("/"));
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(round_trip)->UseRealTime();

// What one wake-up of the server can carry: requests sent together, answers gathered in few writes.
void pipelined(benchmark::State& state) {
  HttpServer server(local(), answer);
  HttpClient client("127.0.0.1", server.port());
  const auto depth = static_cast<int>(state.range(0));
  std::string bytes;
  for (int i = 0; i < depth; ++i) bytes += http_request_head("GET", "/", "h", 0, {});
  for (auto _ : state) {
    client.send_raw(bytes);
    for (int i = 0; i < depth; ++i) benchmark::DoNotOptimize(client.receive());
  }
  state.SetItemsProcessed(state.iterations() * depth);
}
BENCHMARK(pipelined)->Arg(16)->Arg(256)->UseRealTime();

// An image tensor in (1 x 3 x 224 x 224 f32), a small answer out.
void large_body(benchmark::State& state) {
  HttpServer server(local(), answer);
  HttpClient client("127.0.0.1", server.port());
  const std::string body(static_cast<size_t>(state.range(0)), 'x');
  for (auto _ : state) benchmark::DoNotOptimize(client.post("/", body));
  state.SetBytesProcessed(state.iterations() * state.range(0));
}
BENCHMARK(large_body)->Arg(602112)->UseRealTime();

// The path of an inference: the handler hands the reply to another thread, which answers.
void answer_from_another_thread(benchmark::State& state) {
  base::BoundedQueue<HttpReply> queue(64);
  std::thread worker([&] {
    while (auto reply = queue.pop()) reply->send(http_text(200, "ok"));
  });
  HttpServer server(local(), [&](HttpRequest&&, HttpReply reply) { queue.push(std::move(reply)); });
  HttpClient client("127.0.0.1", server.port());
  for (auto _ : state) benchmark::DoNotOptimize(client.get("/"));
  queue.close();
  worker.join();
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(answer_from_another_thread)->UseRealTime();

void parse_request(benchmark::State& state) {
  HttpRequestParser parser({});
  const std::string bytes = http_request_head("POST", "/v2/models/encoder/infer", "localhost:8000", 0,
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
}  // namespace trireme::serve
