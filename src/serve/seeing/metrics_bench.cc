// Measures the cost of counting a request, alone and with other threads, and of a scrape.
#include <benchmark/benchmark.h>

#include "serve/seeing/model_metrics.h"

namespace trireme::serve {
namespace {

/// Times typical of a small model, varied so that different buckets are used.
sched::Timing timing_of(int64_t n) {
  const int64_t at = n * 1'000'000;
  return {.enqueued_ns = at,
          .started_ns = at + 20'000 + n % 7 * 9'000,
          .computed_ns = at + 90'000,
          .finished_ns = at + 150'000 + n % 11 * 30'000,
          .batch_rows = 1 + n % 8,
          .padded_rows = 8,
          .queue_length = 1 + n % 5};
}

// Everything that counts a request and its batch, as if every batch held one request.
void count_request(benchmark::State& state) {
  static MetricRegistry registry;
  static ModelMetrics metrics(registry, {{"model", "m"}, {"version", "1"}}, 8, nullptr);
  int64_t n = state.thread_index();
  for (auto _ : state) {
    const sched::Timing t = timing_of(n++);
    metrics.count_batch(t);
    metrics.count_success(t, t.enqueued_ns - 30'000, t.finished_ns + 20'000, 1);
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(count_request);
BENCHMARK(count_request)->Threads(4)->UseRealTime();

void scrape(benchmark::State& state) {
  MetricRegistry registry;
  for (int64_t i = 0; i < state.range(0); ++i) {
    ModelMetrics metrics(registry, {{"model", "m" + std::to_string(i)}, {"version", "1"}}, 8, nullptr);
    for (int64_t n = 0; n < 100; ++n) metrics.count_success(timing_of(n), 0, 1'000'000, 1);
  }
  size_t bytes = 0;
  for (auto _ : state) bytes += registry.expose().size();
  state.SetBytesProcessed(static_cast<int64_t>(bytes));
}
BENCHMARK(scrape)->Arg(1)->Arg(20);

}  // namespace
}  // namespace trireme::serve
