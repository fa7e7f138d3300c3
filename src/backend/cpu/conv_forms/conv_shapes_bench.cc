// Convolutions of networks that nobody tuned for, and random ones: every form that takes a shape beside a
// multiply-add loop, in turn. Counters: GFLOP/s of the chosen form, its percentage of the loop's rate in the
// same rotation ("percent"), the rate of the loop ("limit"), and GFLOP/s of each form by its name; "_cold" is
// with weights that come from memory, as in a network larger than the caches.
#include <benchmark/benchmark.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <cstring>
#include <ctime>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "backend/cpu/conv_forms/conv_choice.h"
#include "backend/cpu/conv/depthwise_nhwc.h"
#include "backend/cpu/conv/grouped_nhwc.h"
#include "backend/cpu/conv_forms/depthwise_lines.h"
#include "backend/cpu/conv_forms/narrow_nhwc.h"
#include "backend/cpu/conv_forms/winograd_groups.h"
#include "backend/cpu/conv_forms/winograd_lines.h"
#include "backend/cpu/conv/winograd_nhwc.h"

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

/// Random floats on a cache line, as tensors are.
class Floats {
 public:
  Floats(int64_t count, uint32_t seed) : all_(static_cast<size_t>(count) + 16) {
    std::mt19937 generator(seed);
    std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
    for (float& x : all_) x = uniform(generator);
  }
  float* data() { return all_.data() + (64 - reinterpret_cast<uintptr_t>(all_.data()) % 64) / sizeof(float); }

 private:
  std::vector<float> all_;
};

constexpr int kChains = 16, kSteps = 4096;

#if defined(__x86_64__)
__attribute__((target("avx512f"))) void fma_512(float* sink) {
  __m512 sums[kChains], factor = _mm512_set1_ps(0.999f), term = _mm512_set1_ps(0.001f);
  for (__m512& sum : sums) sum = term;
  for (int step = 0; step < kSteps; ++step) {
#pragma GCC unroll 16
    for (int i = 0; i < kChains; ++i) sums[i] = _mm512_fmadd_ps(sums[i], factor, term);
  }
  for (int i = 0; i < kChains; ++i) sink[i] = _mm512_cvtss_f32(sums[i]);
}

__attribute__((target("avx2,fma"))) void fma_256(float* sink) {
  __m256 sums[12], factor = _mm256_set1_ps(0.999f), term = _mm256_set1_ps(0.001f);
  for (__m256& sum : sums) sum = term;
  for (int step = 0; step < kSteps * kChains / 12; ++step) {
#pragma GCC unroll 12
    for (int i = 0; i < 12; ++i) sums[i] = _mm256_fmadd_ps(sums[i], factor, term);
  }
  for (int i = 0; i < 12; ++i) sink[i] = _mm256_cvtss_f32(sums[i]);
}
#endif

/// The multiply-add rate of one thread, flop in a second.
double fma_rate() {
#if defined(__x86_64__)
  static float sink[kChains];
  const bool wide = best_isa() >= Isa::avx512;
  const double begin = now();
  for (int i = 0; i < 8; ++i) wide ? fma_512(sink) : fma_256(sink);
  return 8.0 * 2 * kChains * kSteps * (wide ? 16 : 8) / (now() - begin);
#else
  return 1;
#endif
}

struct Shape {
  std::string name;
  ConvShape conv;
  ImageLayout layout = ImageLayout::nhwc;
};

/// A form that takes the shape, ready to run with its weights `offset` bytes behind the first copy of them.
struct Contender {
  ConvForm form;
  std::string name;
  std::function<void(size_t offset)> run;
  std::vector<char> packed = {}, space = {};
  size_t copy_bytes = 0, copies = 0;
  std::vector<double> times = {}, cold = {};
};

/// The same pointer `offset` bytes further on.
const float* moved(const float* p, size_t offset) { return p + offset / sizeof(float); }

class Contest {
 public:
  explicit Contest(const Shape& shape)
      : pool_(1),
        s_(shape.conv),
        layout_(shape.layout),
        weights_(s_.oc * s_.c / s_.groups * s_.kh * s_.kw),
        x_(s_.n * s_.h * s_.w * s_.c, 1),
        w_(weights_, 2),
        y_(s_.n * s_.out_h() * s_.out_w() * s_.oc, 3) {
    add_implicit();
    if (layout_ == ImageLayout::nchw) return;
    if (conv_is_depthwise(s_)) add_depthwise();
    if (depthwise_lines_fits(s_)) add_depthwise_lines();
    if (winograd_fits(s_)) add_winograd(winograd_tile(s_));
    if (narrow_fits(s_)) add_narrow();
    if (grouped_fits(s_)) add_grouped();
    if (winograd_groups_fits(s_) && s_.c / s_.groups >= 8) add_winograd_groups();
    if (winograd_lines_fits(s_)) add_winograd_lines();
  }

  void run(benchmark::State& state) {
    std::vector<double> limits;
    for (auto _ : state) {
      for (int round = 0; round < kRounds; ++round) {
        limits.push_back(fma_rate());
        for (Contender& c : all_) {
          time(c);
          c.cold.push_back(seconds_cold(c));
        }
      }
    }
    const double flop = static_cast<double>(s_.flop()), limit = median(limits);
    state.counters["limit"] = limit / 1e9;
    for (const Contender& c : all_) {
      const double rate = flop / median(c.times);
      state.counters[c.name] = rate / 1e9;
      state.counters[c.name + "_cold"] = flop / median(c.cold) / 1e9;
      if (c.form != conv_form(s_, layout_)) continue;
      state.counters["GFLOP/s"] = rate / 1e9;
      state.counters["percent"] = 100 * rate / limit;
      state.SetLabel(c.name);
    }
  }

 private:
  static void time(Contender& c) {
    c.run(0);
    double begin = now();
    c.run(0);
    const int repeats = std::clamp(static_cast<int>(2e-3 / (now() - begin)), 1, 1000);
    begin = now();
    for (int i = 0; i < repeats; ++i) c.run(0);
    c.times.push_back((now() - begin) / repeats);
  }

  static double seconds_cold(Contender& c) {
    const double begin = now();
    for (size_t i = 0; i < c.copies; ++i) c.run(i * c.copy_bytes);
    return (now() - begin) / static_cast<double>(c.copies);
  }

  /// Room for as many copies of the packed weights as no cache holds.
  Contender& add(ConvForm form, const char* name, size_t packed, size_t space) {
    constexpr size_t kBeyondCaches = 96 << 20;
    all_.reserve(8);
    Contender& c = all_.emplace_back(Contender{form, name, {}});
    c.copy_bytes = (packed + 63) / 64 * 64;
    c.copies = std::clamp<size_t>(kBeyondCaches / c.copy_bytes, 2, 200);
    c.packed.resize(c.copies * c.copy_bytes);
    c.space.resize(space);
    return c;
  }

  /// All copies lie as the first, which has been packed, does.
  static void repeat(Contender& c) {
    for (size_t i = 1; i < c.copies; ++i)
      std::memcpy(c.packed.data() + i * c.copy_bytes, c.packed.data(), c.copy_bytes);
  }

  void add_implicit() {
    Contender& c =
        add(ConvForm::implicit, "implicit", packed_conv_bytes(s_), conv2d_workspace_bytes(s_, layout_, 1));
    const PackedConv packed = pack_conv(s_, w_.data(), c.packed.data(), best_isa(), layout_);
    repeat(c);
    c.run = [this, packed, space = c.space.data()](size_t offset) {
      PackedConv weights = packed;
      weights.data = moved(packed.data, offset);
      conv2d_nhwc({s_, x_.data(), layout_, weights, y_.data(), {}}, space, pool_);
    };
  }

  void add_depthwise() {
    Contender& c = add(ConvForm::depthwise, "depthwise", static_cast<size_t>(weights_) * sizeof(float), 0);
    float* packed = reinterpret_cast<float*>(c.packed.data());
    pack_depthwise(s_, w_.data(), packed);
    repeat(c);
    c.run = [this, packed](size_t offset) {
      depthwise_nhwc({s_, x_.data(), moved(packed, offset), y_.data(), {}}, pool_);
    };
  }

  void add_depthwise_lines() {
    Contender& c = add(ConvForm::depthwise_lines, "depthwise_lines", packed_depthwise_lines_bytes(s_),
                       depthwise_lines_workspace_bytes(s_, 1));
    const PackedDepthwiseLines packed = pack_depthwise_lines(s_, w_.data(), c.packed.data());
    repeat(c);
    c.run = [this, packed, space = c.space.data()](size_t offset) {
      depthwise_lines_nhwc({s_, x_.data(), {moved(packed.data, offset), packed.lanes}, y_.data(), {}}, space,
                           pool_);
    };
  }

  void add_winograd(WinogradTile tile) {
    Contender& c = add(ConvForm::winograd, "winograd", packed_winograd_bytes(s_, tile),
                       winograd_workspace_bytes(s_, tile, 1));
    const PackedWinograd packed = pack_winograd(s_, w_.data(), tile, c.packed.data());
    repeat(c);
    c.run = [this, packed, space = c.space.data()](size_t offset) {
      PackedWinograd weights = packed;
      weights.data = moved(packed.data, offset);
      winograd_nhwc({s_, x_.data(), weights, y_.data(), {}}, space, pool_);
    };
  }

  void add_narrow() {
    Contender& c = add(ConvForm::narrow, "narrow", packed_narrow_bytes(s_), 0);
    const float* packed = pack_narrow(s_, w_.data(), c.packed.data());
    repeat(c);
    c.run = [this, packed](size_t offset) {
      narrow_nhwc({s_, x_.data(), moved(packed, offset), y_.data(), {}}, pool_);
    };
  }

  void add_grouped() {
    Contender& c =
        add(ConvForm::grouped, "grouped", packed_grouped_bytes(s_), grouped_workspace_bytes(s_, 1));
    const PackedGrouped packed = pack_grouped(s_, w_.data(), c.packed.data());
    repeat(c);
    c.run = [this, packed, space = c.space.data()](size_t offset) {
      grouped_nhwc({s_, x_.data(), {moved(packed.data, offset), packed.lanes}, y_.data(), {}}, space, pool_);
    };
  }

  void add_winograd_groups() {
    Contender& c = add(ConvForm::winograd_groups, "winograd_groups", packed_winograd_groups_bytes(s_),
                       winograd_groups_workspace_bytes(s_, 1));
    const auto packed = pack_winograd_groups(s_, w_.data(), c.packed.data());
    repeat(c);
    c.run = [this, packed, space = c.space.data()](size_t offset) {
      std::vector<PackedWinograd> weights = packed;
      for (PackedWinograd& w : weights) w.data = moved(w.data, offset);
      winograd_groups_nhwc({s_, x_.data(), weights.data(), y_.data(), {}}, space, pool_);
    };
  }

  void add_winograd_lines() {
    Contender& c = add(ConvForm::winograd_lines, "winograd_lines", packed_winograd_lines_bytes(s_),
                       winograd_lines_workspace_bytes(s_, 1));
    const PackedWinogradLines packed = pack_winograd_lines(s_, w_.data(), c.packed.data(), pool_);
    repeat(c);
    c.run = [this, packed, space = c.space.data()](size_t offset) {
      PackedWinogradLines weights = packed;
      weights.data = moved(packed.data, offset);
      winograd_lines_nhwc({s_, x_.data(), weights, y_.data(), {}}, space, pool_);
    };
  }

  base::ThreadPool pool_;
  const ConvShape& s_;
  ImageLayout layout_;
  int64_t weights_;
  Floats x_, w_, y_;
  std::vector<Contender> all_;
};

/// Side, channels, kernel and what is not usual.
struct Layer {
  int64_t side, c, oc;
  int k, stride = 1;
  int64_t groups = 1;
  int dilation = 1;
  bool patch = false;  // no padding
};

ConvShape conv_of(const Layer& l) {
  ConvShape s;
  s.h = s.w = l.side;
  s.c = l.c, s.oc = l.oc;
  s.kh = s.kw = l.k;
  s.stride_h = s.stride_w = l.stride;
  s.dilation_h = s.dilation_w = l.dilation;
  s.groups = l.groups;
  const int pad = l.patch ? 0 : l.dilation * (l.k / 2);
  s.pad_top = s.pad_left = s.pad_bottom = s.pad_right = pad;
  return s;
}

/// Depthwise kernels of many taps, and a few wide groups.
std::vector<std::pair<const char*, Layer>> group_layers() {
  return {
      {"convmixer_32_7x7", {32, 768, 768, 7, 1, 768}},
      {"convmixer_16_9x9", {16, 1024, 1024, 9, 1, 1024}},
      {"convnext_56_7x7", {56, 96, 96, 7, 1, 96}},
      {"convnext_14_7x7", {14, 384, 384, 7, 1, 384}},
      {"convnext_7_7x7", {7, 768, 768, 7, 1, 768}},
      {"depthwise_112_3x3", {112, 32, 32, 3, 1, 32}},
      {"depthwise_112_3x3_8", {112, 8, 8, 3, 1, 8}},
      {"depthwise_112_3x3_12", {112, 12, 12, 3, 1, 12}},
      {"depthwise_112_3x3_20_s2", {112, 20, 20, 3, 2, 20}},
      {"depthwise_56_3x3_36", {56, 36, 36, 3, 1, 36}},
      {"depthwise_28_5x5_60", {28, 60, 60, 5, 1, 60}},
      {"depthwise_14_3x3_60", {14, 60, 60, 3, 1, 60}},
      {"depthwise_14_3x3_100", {14, 100, 100, 3, 1, 100}},
      {"depthwise_14_3x3_44_s2", {14, 44, 44, 3, 2, 44}},
      {"depthwise_7_5x5_60", {7, 60, 60, 5, 1, 60}},
      {"depthwise_14_3x3_512", {14, 512, 512, 3, 1, 512}},
      {"depthwise_14_5x5_672", {14, 672, 672, 5, 1, 672}},
      {"depthwise_28_5x5_s2", {28, 240, 240, 5, 2, 240}},
      {"depthwise_7_3x3_1024", {7, 1024, 1024, 3, 1, 1024}},
      {"depthwise_14_11x11", {14, 256, 256, 11, 1, 256}},
      {"resnest_56_g2", {56, 64, 128, 3, 1, 2}},
      {"resnest_28_g2", {28, 128, 256, 3, 1, 2}},
      {"resnest_14_g2", {14, 256, 512, 3, 1, 2}},
      {"resnest_7_g2", {7, 512, 1024, 3, 1, 2}},
      {"group_28_g8x32", {28, 256, 256, 3, 1, 8}},
      {"group_56_g16x16", {56, 256, 256, 3, 1, 16}},
      {"group_14_g3x232", {14, 696, 696, 3, 1, 3}},
  };
}

/// Kernels that are lines, "same" padding: [h, w] pixels.
void add_lines(std::vector<Shape>& all) {
  struct Line {
    const char* name;
    int64_t h, w, c, oc;
    int kh, kw, dilation = 1;
  };
  for (const Line& l :
       {Line{"inception_1x7", 17, 17, 128, 128, 1, 7}, Line{"inception_7x1", 17, 17, 128, 128, 7, 1},
        Line{"inception_1x3", 8, 8, 384, 384, 1, 3}, Line{"inception_3x1", 8, 8, 448, 384, 3, 1},
        Line{"video_56_3", 8, 3136, 192, 192, 3, 1}, Line{"video_14_3", 4, 196, 208, 208, 3, 1},
        Line{"video_7_3", 2, 49, 384, 384, 3, 1}, Line{"sound_3_80", 1, 3000, 80, 384, 1, 3},
        Line{"sound_3_512", 1, 400, 512, 512, 1, 3}, Line{"vocoder_11_d3", 1, 2000, 128, 128, 1, 11, 3},
        Line{"vocoder_7_d5", 1, 8000, 64, 64, 1, 7, 5}, Line{"vocoder_3_32", 1, 32000, 32, 32, 1, 3},
        Line{"vocoder_3_16", 1, 32000, 16, 16, 1, 3}, Line{"text_5_256", 1, 128, 256, 256, 1, 5},
        Line{"text_3_768", 1, 64, 768, 768, 1, 3}, Line{"text_3_512_24", 1, 24, 512, 512, 1, 3},
        Line{"small_5x5_3x3", 5, 5, 512, 512, 3, 3}, Line{"text_4_64", 1, 64, 128, 64, 1, 4}}) {
    Shape one{l.name, {.h = l.h, .w = l.w, .c = l.c, .oc = l.oc, .kh = l.kh, .kw = l.kw}};
    ConvShape& s = one.conv;
    (l.kh > 1 ? s.dilation_h : s.dilation_w) = l.dilation;
    s.pad_top = s.pad_bottom = s.dilation_h * (s.kh - 1) / 2;
    s.pad_left = s.pad_right = s.dilation_w * (s.kw - 1) / 2;
    all.push_back(one);
  }
}

std::vector<Shape> layers() {
  std::vector<Shape> all;
  const auto add = [&](const char* name, const Layer& l, ImageLayout layout = ImageLayout::nhwc) {
    all.push_back({name, conv_of(l), layout});
  };
  const ImageLayout planes = ImageLayout::nchw;
  for (const auto& [name, layer] : group_layers()) add(name, layer);
  add("resnext_56_g32x4", {56, 128, 128, 3, 1, 32});
  add("resnext_28_g32x8", {28, 256, 256, 3, 1, 32});
  add("resnext_56_g32x8_s2", {56, 256, 256, 3, 2, 32});
  add("resnext_14_g32x16", {14, 512, 512, 3, 1, 32});
  add("resnext_7_g32x32", {7, 1024, 1024, 3, 1, 32});
  add("regnet_112_g4x8_s2", {112, 32, 32, 3, 2, 4});
  add("regnet_56_g6x8_s2", {56, 48, 48, 3, 2, 6});
  add("regnet_28_g13x8", {28, 104, 104, 3, 1, 13});
  add("regnet_14_g26x8", {14, 208, 208, 3, 1, 26});
  add("regnet_14_g20x16", {14, 320, 320, 3, 1, 20});
  add("regnet_7_g55x8", {7, 440, 440, 3, 1, 55});
  add("regnet_14_g14x24", {14, 336, 336, 3, 1, 14});
  add("regnet_14_g8x56", {14, 448, 448, 3, 1, 8});
  add("regnet_14_g11x112", {14, 1232, 1232, 3, 1, 11});
  add("multiplier_28_2", {28, 64, 128, 3, 1, 64});
  add("multiplier_28_4", {28, 64, 256, 3, 1, 64});
  add("group_28_1x1_g16x4", {28, 64, 64, 1, 1, 16});
  add("group_28_1x1_g16x8", {28, 128, 128, 1, 1, 16});
  add("group_14_g8x64", {14, 512, 512, 3, 1, 8});
  add("group_14_g8x80", {14, 640, 640, 3, 1, 8});
  add("shuffle_28_1x1_g3", {28, 240, 60, 1, 1, 3});
  add("deeplab_28_d2", {28, 256, 256, 3, 1, 1, 2});
  add("deeplab_28_d4", {28, 512, 512, 3, 1, 1, 4});
  add("deeplab_28_d6", {28, 512, 256, 3, 1, 1, 6});
  add("deeplab_28_d3", {28, 64, 64, 3, 1, 1, 3});
  add("deeplab_28_d6_64", {28, 64, 64, 3, 1, 1, 6});
  add("deeplab_28_d12", {28, 2048, 256, 3, 1, 1, 12});
  add("deeplab_28_d24", {28, 2048, 256, 3, 1, 1, 24});
  add("deeplab_14_d2", {14, 256, 256, 3, 1, 1, 2});
  add("deeplab_14_d6", {14, 960, 256, 3, 1, 1, 6});
  add("deeplab_14_d12", {14, 960, 256, 3, 1, 1, 12});
  add("deeplab_28_d18", {28, 960, 256, 3, 1, 1, 18});
  add("densenet_56", {56, 128, 32, 3});
  add("densenet_28", {28, 128, 32, 3});
  add("densenet_14", {14, 128, 32, 3});
  add("densenet_7", {7, 128, 32, 3});
  add("densenet_7_deep", {7, 192, 48, 3});
  add("resnet_14", {14, 256, 256, 3});
  add("resnet_7", {7, 512, 512, 3});
  add("resnet_28", {28, 128, 128, 3});
  add("few_out_56_16", {56, 64, 16, 3});
  add("segformer_64_1x1", {64, 1024, 256, 1});
  add("segformer_128_1x1", {128, 1024, 256, 1});
  add("head_64_1x1_1", {64, 256, 1, 1});
  add("head_64_1x1_4", {64, 256, 4, 1});
  add("head_64_3x3_2", {64, 64, 2, 3});
  add("head_64_1x1_21", {64, 256, 21, 1});
  add("patch_4x4_3", {224, 3, 96, 4, 4, 1, 1, true}, planes);
  add("patch_16x16_3", {224, 3, 768, 16, 16, 1, 1, true}, planes);
  add("patch_14x14_3", {224, 3, 384, 14, 14, 1, 1, true}, planes);
  add("patch_7x7_s4_3", {224, 3, 32, 7, 4}, planes);
  add("patch_2x2_96", {56, 96, 192, 2, 2, 1, 1, true});
  add("patch_2x2_384", {14, 384, 768, 2, 2, 1, 1, true});
  add("stem_7x7_s2_3", {224, 3, 64, 7, 2}, planes);
  add("inception_5x5", {28, 32, 64, 5});
  add("deep_7x7", {28, 64, 64, 7});
  add("depthwise_7x7", {28, 192, 192, 7, 1, 192});
  add("depthwise_7x7_s2", {56, 96, 96, 7, 2, 96});
  add("depthwise_3x3_d2", {28, 192, 192, 3, 1, 192, 2});
  add("depthwise_3x3_s2", {56, 96, 96, 3, 2, 96});
  add_lines(all);
  return all;
}

std::vector<Shape> random_layers(int count) {
  std::vector<Shape> all;
  std::mt19937 generator(7);
  const auto pick = [&](std::vector<int64_t> from) { return from[generator() % from.size()]; };
  while (static_cast<int>(all.size()) < count) {
    Layer l{};
    l.side = pick({7, 10, 14, 19, 28, 33, 56});
    l.groups = pick({1, 1, 1, 4, 16, 40});
    l.c = l.groups * pick(l.groups == 1 ? std::vector<int64_t>{3, 24, 40, 64, 136, 320}
                                        : std::vector<int64_t>{1, 2, 6, 8, 12, 20, 40});
    l.oc = l.groups * pick(l.groups == 1 ? std::vector<int64_t>{1, 5, 18, 48, 80, 256}
                                         : std::vector<int64_t>{1, 2, 6, 8, 12, 20, 40});
    l.k = static_cast<int>(pick({1, 2, 3, 3, 3, 5, 7}));
    l.stride = static_cast<int>(pick({1, 1, 1, 2, 3}));
    l.dilation = l.k > 1 ? static_cast<int>(pick({1, 1, 1, 2, 3})) : 1;
    const ConvShape s = conv_of(l);
    if (s.out_h() < 1 || s.flop() < 500000 || s.flop() > 2000000000) continue;
    const auto text = [](int64_t v) { return std::to_string(v); };
    std::string name = "random_" + text(l.side) + "_" + text(l.c) + "to" + text(l.oc) + "_k" + text(l.k);
    name += "_s" + text(l.stride) + "_d" + text(l.dilation) + "_g" + text(l.groups);
    all.push_back({name, s});
  }
  return all;
}

const bool kRegistered = [] {
  std::vector<Shape> all = layers();
  for (Shape& shape : random_layers(30)) all.push_back(std::move(shape));
  for (const Shape& shape : all) {
    benchmark::RegisterBenchmark(shape.name.c_str(), [shape](benchmark::State& state) {
      Contest(shape).run(state);
    })->Iterations(1);
  }
  return true;
}();

}  // namespace
}  // namespace trireme::cpu
