// A training step in f32, bf16 and f16: time and activation memory.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <ctime>

#include "base/rng.h"
#include "engine/train/train_session.h"
#include "model/loss.h"
#include "model/zoo/zoo.h"

namespace trireme::engine {
namespace {

using passes::Precision;
using tensor::DType;
using tensor::Tensor;

struct Job {
  const char* name;
  std::vector<std::string> options;
  std::vector<tensor::Dims> shapes;  // of the inputs
  int64_t classes;
};

const Job kGpt{"gpt2",
               {"vocabulary=4096", "positions=256", "width=512", "layers=4", "heads=8"},
               {{4, 256}, {4, 256}},
               4096};
const Job kCnn{"cnn", {}, {{64, 1, 28, 28}, {64}}, 10};

Feeds feeds_of(const Job& job) {
  Feeds feeds;
  base::Rng rng(1);
  for (size_t i = 0; i < job.shapes.size(); ++i) {
    const bool ids = job.shapes[i].size() < 4;
    feeds.push_back(Tensor::empty(ids ? DType::i64 : DType::f32, job.shapes[i]));
    if (ids) {
      for (auto& v : feeds.back().mutable_data<int64_t>())
        v = static_cast<int64_t>(rng.uniform() * static_cast<double>(job.classes));
    } else {
      for (auto& v : feeds.back().mutable_data<float>()) v = static_cast<float>(rng.normal());
    }
  }
  return feeds;
}

// One thread is timed by its own CPU time, which does not depend on other load; a team by the wall clock.
double now(bool alone) {
  timespec t;
  clock_gettime(alone ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

void bench(benchmark::State& state, const Job& job, Precision precision, int threads) {
  ir::Graph graph = model::zoo::build(job.name, job.options).graph;
  model::add_loss(graph);
  TrainOptions options;
  options.strategy.precision.compute = precision;
  options.threads = threads;
  TrainSession session(graph, options);
  const Feeds feeds = feeds_of(job);
  StepInputs inputs;
  inputs.lr = 1e-4f;
  inputs.loss_weight = 1.0f / static_cast<float>(feeds.back().elements());
  session.step(feeds, inputs);
  std::vector<double> ms;
  for (auto _ : state) {
    const double start = now(threads == 1);
    session.step(feeds, inputs);
    const double took = now(threads == 1) - start;
    state.SetIterationTime(took);
    ms.push_back(took * 1e3);
  }
  std::nth_element(ms.begin(), ms.begin() + static_cast<int64_t>(ms.size() / 2), ms.end());
  state.counters["median_ms"] = ms[ms.size() / 2];
  state.counters["arena_MiB"] =
      static_cast<double>(session.programs(job.shapes, 1)[0]->memory.arena_bytes) / 1048576.0;
}

const bool kRegistered = [] {
  const std::pair<const char*, Precision> precisions[] = {
      {"f32", Precision::f32}, {"bf16", Precision::bf16}, {"f16", Precision::f16}};
  for (const Job* job : {&kGpt, &kCnn}) {
    for (const auto& [name, precision] : precisions) {
      for (int threads : {1, 4}) {
        const Precision p = precision;
        benchmark::RegisterBenchmark(base::concat(job->name, "/", name, "/threads:", threads).c_str(),
                                     [job, p, threads](benchmark::State& s) { bench(s, *job, p, threads); })
            ->UseManualTime()
            ->Unit(benchmark::kMillisecond)
            ->Iterations(12);
      }
    }
  }
  return true;
}();

}  // namespace
}  // namespace trireme::engine
