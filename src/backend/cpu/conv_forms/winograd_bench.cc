// Winograd tiles of two and of four beside the implicit product, alternating, on the 3 x 3 layers of
// ResNet-50.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <random>
#include <string>
#include <vector>

#include "backend/cpu/conv/winograd_nhwc.h"

namespace trireme::cpu {
namespace {

std::vector<float> normal_floats(int64_t count, double scale, uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<double> normal(0.0, scale);
  std::vector<float> out(static_cast<size_t>(count));
  for (float& x : out) x = static_cast<float>(normal(generator));
  return out;
}

/// One thread is timed by its own processor time, which a busy machine does not stretch.
double now(bool alone) {
  timespec t;
  clock_gettime(alone ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<int64_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

double worst(const std::vector<float>& y, const std::vector<float>& want) {
  double difference = 0, largest = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    difference = std::max(difference, std::abs(double{y[i]} - want[i]));
    largest = std::max(largest, std::abs(double{want[i]}));
  }
  return difference / largest;
}

/// Arguments: image side, channels, batch, threads. Counters: medians in microseconds, ratios to the implicit
/// product, and the largest difference from it relative to the largest output.
void layer(benchmark::State& state) {
  ConvShape s;
  s.h = s.w = state.range(0);
  s.c = s.oc = state.range(1);
  s.n = state.range(2);
  s.kh = s.kw = 3;
  s.pad_top = s.pad_left = s.pad_bottom = s.pad_right = 1;
  const int threads = static_cast<int>(state.range(3));
  base::ThreadPool pool(threads);
  const std::vector<float> x = normal_floats(s.n * s.h * s.w * s.c, 1.0, 1);
  const std::vector<float> w =
      normal_floats(s.oc * s.c * 9, 1.0 / std::sqrt(9.0 * static_cast<double>(s.c)), 2);
  const size_t outputs = static_cast<size_t>(s.n * s.h * s.w * s.oc);
  std::vector<float> want(outputs);
  std::vector<char> packed(packed_conv_bytes(s)),
      space(conv2d_workspace_bytes(s, ImageLayout::nhwc, threads));
  const ConvArgs conv = {s,           x.data(), ImageLayout::nhwc, pack_conv(s, w.data(), packed.data()),
                         want.data(), {}};
  struct Form {
    std::vector<char> packed, space;
    std::vector<float> y;
    WinogradArgs args;
    std::vector<double> times, ratios;
  };
  Form forms[2];
  for (int f = 0; f < 2; ++f) {
    const WinogradTile tile = f == 0 ? WinogradTile::two : WinogradTile::four;
    forms[f].packed.resize(packed_winograd_bytes(s, tile));
    forms[f].space.resize(winograd_workspace_bytes(s, tile, threads));
    forms[f].y.resize(outputs);
    forms[f].args = {
        s, x.data(), pack_winograd(s, w.data(), tile, forms[f].packed.data()), forms[f].y.data(), {}};
  }
  // One thread is on the caller's clock; a team's wall time needs a quiet machine.
  const auto time = [&](const auto& call) {
    call();
    const double begin = now(threads == 1);
    for (int i = 0; i < 5; ++i) call();
    return (now(threads == 1) - begin) / 5;
  };
  std::vector<double> direct;
  for (auto _ : state) {
    direct.push_back(time([&] { conv2d_nhwc(conv, space.data(), pool); }));
    for (Form& f : forms) {
      f.times.push_back(time([&] { winograd_nhwc(f.args, f.space.data(), pool); }));
      f.ratios.push_back(direct.back() / f.times.back());
    }
  }
  state.counters["direct_us"] = 1e6 * median(direct);
  for (int f = 0; f < 2; ++f) {
    const std::string name = f == 0 ? "two" : "four";
    state.counters[name + "_us"] = 1e6 * median(forms[f].times);
    state.counters[name + "_gain"] = median(forms[f].ratios);
    state.counters[name + "_error"] = worst(forms[f].y, want);
  }
}

BENCHMARK(layer)
    ->ArgNames({"side", "channels", "batch", "threads"})
    ->ArgsProduct({{56}, {16, 32, 64, 128}, {1, 8}, {1, 4}})
    ->ArgsProduct({{28}, {32, 64, 128, 256}, {1, 8}, {1, 4}})
    ->ArgsProduct({{14, 7}, {256, 512}, {1, 8}, {1, 4}})
    ->ArgsProduct({{8}, {16, 32, 64, 128}, {1, 8}, {1, 4}})
    ->ArgsProduct({{4, 16}, {32, 64}, {1, 8}, {1, 4}})
    ->Iterations(9);

}  // namespace
}  // namespace trireme::cpu
