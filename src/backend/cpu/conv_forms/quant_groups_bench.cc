// 8-bit convolutions in groups: blocks of groups over copied lines beside a product for each group, in turn.
// Counters: GOP/s of each form, multiply-adds counted once, without the zeros between groups.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <ctime>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "backend/cpu/conv_forms/quant_groups.h"

namespace trireme::cpu {
namespace {

constexpr int kRounds = 7;

/// Processor time of this thread, which a busy machine does not stretch.
double now() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<int64_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

double seconds(const std::function<void()>& run) {
  double begin = now();
  run();
  const int repeats = std::clamp(static_cast<int>(2e-3 / (now() - begin)), 1, 1000);
  begin = now();
  for (int i = 0; i < repeats; ++i) run();
  return (now() - begin) / repeats;
}

std::vector<uint8_t> random_bytes(int64_t count, uint32_t seed) {
  std::mt19937 generator(seed);
  std::vector<uint8_t> out(static_cast<size_t>(count));
  for (uint8_t& x : out) x = static_cast<uint8_t>(generator());
  return out;
}

/// Weights that are packed, and the scratch memory of one run.
struct Form {
  std::vector<char> packed, space;
  std::vector<PackedQuantMatrix> parts;
};

void contest(benchmark::State& state, const ConvShape& s) {
  if (!quant_groups_fits(s)) return state.SkipWithError("no tiles with byte results at this level");
  base::ThreadPool pool(1);
  const std::vector<uint8_t> x = random_bytes(s.n * s.h * s.w * s.c, 1),
                             w = random_bytes(s.oc * s.c / s.groups * s.kh * s.kw, 2);
  std::vector<uint8_t> y(static_cast<size_t>(s.n * s.out_h() * s.out_w() * s.oc));
  const std::vector<int32_t> offsets(static_cast<size_t>(s.oc), 3);
  const std::vector<float> scale(static_cast<size_t>(s.oc), 0.001f);
  QuantEpilogue e = {QuantOutput::u8, offsets.data(), nullptr, scale.data(), 10, 0, 255};
  e.scales_below_one = true;
  Form blocks, groups;
  blocks.packed.resize(packed_quant_groups_bytes(s));
  blocks.space.resize(quant_groups_workspace_bytes(s, 1));
  blocks.parts = pack_quant_groups(s, {w.data(), true}, blocks.packed.data());
  groups.packed.resize(packed_quant_conv_bytes(s));
  groups.space.resize(quant_conv2d_workspace_bytes(s, 1));
  for (int64_t g = 0; g < s.groups; ++g)
    groups.parts.push_back(pack_quant_conv(s, {w.data(), true}, g, groups.packed.data()));
  const auto run = [&](auto form, Form& with) {
    form({s, x.data(), ImageLayout::nhwc, {false, 0}, with.parts.data(), y.data(), e}, with.space.data(),
         pool);
  };
  std::vector<double> by_blocks, by_groups;
  for (auto _ : state) {
    for (int round = 0; round < kRounds; ++round) {
      by_blocks.push_back(seconds([&] { run(quant_groups_nhwc, blocks); }));
      by_groups.push_back(seconds([&] { run(quant_conv2d_nhwc, groups); }));
    }
  }
  const double flop = static_cast<double>(s.flop());
  state.counters["blocks"] = flop / median(by_blocks) / 1e9;
  state.counters["groups"] = flop / median(by_groups) / 1e9;
}

/// Side, channels, kernel, stride and groups, "same" padding.
struct Layer {
  int64_t side, c, oc;
  int k, stride;
  int64_t groups;
};

const bool kRegistered = [] {
  for (const Layer& l : std::vector<Layer>{{56, 128, 128, 3, 1, 32},
                                           {28, 256, 256, 3, 1, 32},
                                           {14, 512, 512, 3, 1, 32},
                                           {7, 1024, 1024, 3, 1, 32},
                                           {56, 256, 256, 3, 2, 32},
                                           {112, 32, 32, 3, 2, 2},
                                           {56, 48, 48, 3, 2, 3},
                                           {28, 128, 128, 3, 1, 8},
                                           {28, 104, 104, 3, 1, 13},
                                           {14, 320, 320, 3, 1, 20},
                                           {14, 336, 336, 3, 1, 14},
                                           {14, 448, 448, 3, 1, 8},
                                           {56, 128, 128, 3, 1, 2},
                                           {14, 440, 440, 5, 1, 55},
                                           {28, 64, 128, 3, 1, 64},
                                           {28, 72, 72, 3, 1, 24},
                                           {19, 90, 135, 3, 1, 15}}) {
    ConvShape s;
    s.h = s.w = l.side;
    s.c = l.c, s.oc = l.oc, s.groups = l.groups;
    s.kh = s.kw = l.k;
    s.stride_h = s.stride_w = l.stride;
    s.pad_top = s.pad_left = s.pad_bottom = s.pad_right = l.k / 2;
    const auto text = [](int64_t v) { return std::to_string(v); };
    const std::string name = text(l.side) + "_" + text(l.c) + "to" + text(l.oc) + "_k" + text(l.k) + "_s" +
                             text(l.stride) + "_g" + text(l.groups);
    benchmark::RegisterBenchmark(name.c_str(), [s](benchmark::State& state) {
      contest(state, s);
    })->Iterations(1);
  }
  return true;
}();

}  // namespace
}  // namespace trireme::cpu
