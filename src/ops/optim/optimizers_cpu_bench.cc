// Updates of a transformer's parameters in one node, in place, compared with copying the same number of
// bytes: percent of bandwidth.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "ops/optim/test_update_cpu.h"

namespace trireme::ops::testing {
namespace {

/// 4 blocks of width 768 and a vocabulary of 16384: 41 M parameters in 49 tensors, as in
/// bench/optimizer_peer.py.
std::vector<tensor::Dims> shapes() {
  std::vector<tensor::Dims> all{{16384, 768}, {1024, 768}};
  for (int i = 0; i < 4; ++i) {
    for (const tensor::Dims& d : std::vector<tensor::Dims>{{768},
                                                           {768},
                                                           {768, 2304},
                                                           {2304},
                                                           {768, 768},
                                                           {768},
                                                           {768},
                                                           {768},
                                                           {768, 3072},
                                                           {3072},
                                                           {3072, 768},
                                                           {768}})
      all.push_back(d);
  }
  return all;
}

std::vector<Group> make_groups(const std::string& op) {
  std::vector<Group> groups;
  for (const tensor::Dims& d : shapes()) {
    const bool matrix = d.size() == 2;
    if (!matrix && (op == "muon_update" || op == "adafactor_update")) continue;
    if (op == "muon_update" && d[0] > 3072) continue;
    Group g{random_tensor(DType::f32, d, -0.1, 0.1, 1), random_tensor(DType::f32, d, -0.01, 0.01, 2)};
    if (op == "adafactor_update") {
      g.push_back(Tensor::zeros(DType::f32, {d[0], 1}));
      g.push_back(Tensor::zeros(DType::f32, {1, d[1]}));
    } else {
      for (size_t s = 0; s < update_layout(op).states; ++s) g.push_back(Tensor::zeros(DType::f32, d));
    }
    groups.push_back(std::move(g));
  }
  return groups;
}

double seconds(const std::function<void()>& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> v) {
  std::nth_element(v.begin(), v.begin() + static_cast<int64_t>(v.size() / 2), v.end());
  return v[v.size() / 2];
}

/// Copies between buffers much larger than the caches, until `bytes` have been read and written in total.
class Copy {
 public:
  explicit Copy(base::ThreadPool& pool) : pool_(pool), from_(kBytes, 1), to_(kBytes, 2) {}
  void run(double bytes) {
    for (double left = bytes / 2; left > 0; left -= static_cast<double>(kBytes)) {
      const int64_t n = static_cast<int64_t>(std::min(left, static_cast<double>(kBytes)));
      pool_.for_range(n, 1 << 20, [&](int64_t b, int64_t e) {
        std::memcpy(to_.data() + b, from_.data() + b, static_cast<size_t>(e - b));
      });
    }
  }

 private:
  static constexpr size_t kBytes = size_t{1} << 28;
  base::ThreadPool& pool_;
  std::vector<char> from_, to_;
};

void bench(benchmark::State& state, const std::string& op, int threads) {
  std::vector<Group> groups = make_groups(op);
  base::ThreadPool pool(threads);
  BoundUpdate update({.op = op, .attrs = {{"weight_decay", 0.01}}, .lr = 1e-3, .step = 2}, groups, pool);
  Copy copy(pool);
  const double bytes = update.cost().bytes;
  std::vector<double> mine, limit;
  update.run();
  copy.run(bytes);
  for (auto _ : state) {
    limit.push_back(seconds([&] { copy.run(bytes); }));
    mine.push_back(seconds([&] { update.run(); }));
    state.SetIterationTime(mine.back());
  }
  state.counters["GB/s"] = bytes / median(mine) / 1e9;
  state.counters["copy"] = bytes / median(limit) / 1e9;
  state.counters["percent"] = 100 * median(limit) / median(mine);
  state.counters["GFLOP/s"] = update.cost().flop / median(mine) / 1e9;
}

const bool kRegistered = [] {
  for (const char* op : {"sgd_update", "momentum_update", "adam_update", "lamb_update", "lars_update",
                         "adafactor_update", "muon_update"}) {
    for (int threads : {1, 4}) {
      benchmark::RegisterBenchmark(base::concat(op, "/threads:", threads).c_str(),
                                   [op, threads](benchmark::State& s) { bench(s, op, threads); })
          ->UseManualTime()
          ->Unit(benchmark::kMillisecond)
          ->Iterations(std::string_view(op) == "muon_update" ? 3 : 15);
    }
  }
  return true;
}();

}  // namespace
}  // namespace trireme::ops::testing
