// Tests the Winograd form against double loops: odd sizes, paddings, epilogues, levels; the same bits for any
// team.
#include "backend/cpu/conv/winograd_nhwc.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "backend/cpu/simd/simd_level.h"

namespace trireme::cpu {
namespace {

std::vector<float> normal_floats(int64_t count, uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0f, 1.0f);
  std::vector<float> out(static_cast<size_t>(count));
  for (float& x : out) x = normal(generator);
  return out;
}

struct Data {
  ConvShape s;
  std::vector<float> x, w, bias, residual;
};

Data data_for(const ConvShape& s) {
  return {s, normal_floats(s.n * s.h * s.w * s.c, 1), normal_floats(s.oc * s.c * 9, 2),
          normal_floats(s.oc, 3), normal_floats(s.n * s.out_h() * s.out_w() * s.oc, 4)};
}

/// The sums of the convolution without epilogue, in double.
std::vector<double> sums(const Data& d) {
  const ConvShape& s = d.s;
  const int64_t oh = s.out_h(), ow = s.out_w();
  std::vector<double> y;
  for (int64_t i = 0; i < s.n * oh * ow * s.oc; ++i) {
    const int64_t o = i % s.oc, q = i / s.oc % ow, p = i / s.oc / ow % oh, n = i / s.oc / ow / oh;
    double sum = 0;
    for (int64_t a = std::max<int64_t>(0, s.pad_top - p); a < 3 && p - s.pad_top + a < s.h; ++a) {
      for (int64_t b = std::max<int64_t>(0, s.pad_left - q); b < 3 && q - s.pad_left + b < s.w; ++b) {
        const int64_t pixel = (n * s.h + p - s.pad_top + a) * s.w + q - s.pad_left + b;
        for (int64_t c = 0; c < s.c; ++c) {
          sum += double{d.x[static_cast<size_t>(pixel * s.c + c)]} *
                 d.w[static_cast<size_t>(((o * s.c + c) * 3 + a) * 3 + b)];
        }
      }
    }
    y.push_back(sum);
  }
  return y;
}

/// Image h x w, channels c -> oc, paddings top, left, bottom, right.
ConvShape winograd_shape(int64_t h, int64_t w, int64_t c, int64_t oc, std::vector<int> pads) {
  ConvShape s;
  s.n = 2;
  s.h = h, s.w = w, s.c = c, s.oc = oc;
  s.kh = s.kw = 3;
  s.pad_top = pads[0], s.pad_left = pads[1], s.pad_bottom = pads[2], s.pad_right = pads[3];
  return s;
}

std::vector<ConvShape> winograd_shapes() {
  return {winograd_shape(9, 13, 5, 7, {1, 1, 1, 1}),    winograd_shape(8, 8, 16, 32, {1, 1, 1, 1}),
          winograd_shape(3, 3, 17, 33, {0, 0, 0, 0}),   winograd_shape(2, 1, 3, 2, {1, 1, 1, 1}),
          winograd_shape(1, 5, 20, 70, {1, 2, 2, 0}),   winograd_shape(30, 27, 37, 130, {0, 1, 1, 0}),
          winograd_shape(11, 6, 64, 100, {0, 0, 1, 2}), winograd_shape(5, 4, 1, 1, {2, 2, 2, 2})};
}

std::vector<float> run(const Data& d, WinogradTile tile, const Epilogue& e, int threads, Isa isa) {
  std::vector<char> packed(packed_winograd_bytes(d.s, tile, isa));
  std::vector<char> space(winograd_workspace_bytes(d.s, tile, threads));
  std::vector<float> y(d.residual.size(), NAN);
  base::ThreadPool pool(threads);
  const PackedWinograd weights = pack_winograd(d.s, d.w.data(), tile, packed.data(), isa);
  winograd_nhwc({d.s, d.x.data(), weights, y.data(), e}, space.data(), pool);
  return y;
}

double bound(const std::vector<double>& want, WinogradTile tile) {
  double largest = 1;
  for (const double v : want) largest = std::max(largest, std::abs(v));
  return largest * (tile == WinogradTile::two ? 3e-6 : 2e-5);
}

TEST(WinogradNhwc, AgreesWithDoubleLoopsAtEveryLevel) {
  for (const ConvShape& s : winograd_shapes()) {
    const Data d = data_for(s);
    const std::vector<double> want = sums(d);
    const Epilogue e = {d.bias.data(), d.residual.data(), Activation::relu};
    for (const WinogradTile tile : {WinogradTile::two, WinogradTile::four}) {
      const double most = bound(want, tile);
      for (const Isa isa : usable_isas()) {
        for (const SimdLevel& level : simd_levels()) {
          simd_force(level);
          const std::vector<float> y = run(d, tile, e, 1, isa);
          for (size_t i = 0; i < y.size(); ++i) {
            const double sum = want[i] + d.bias[i % d.bias.size()] + d.residual[i];
            ASSERT_NEAR(y[i], std::max(sum, 0.0), most)
                << level.name << " " << to_string(isa) << " h=" << s.h << " c=" << s.c;
          }
          ASSERT_EQ(y, run(d, tile, e, 4, isa)) << "a team changes bits";
        }
      }
    }
  }
  simd_unforce();
}

TEST(WinogradNhwc, EpiloguesInEitherOrder) {
  const Data d = data_for(winograd_shape(9, 10, 19, 150, {1, 1, 1, 1}));
  const std::vector<double> want = sums(d);
  const double most = bound(want, WinogradTile::four);
  const auto act = [](Activation a, double v) {
    if (a == Activation::clip) return std::clamp(v, -1.0, 2.0);
    return a == Activation::silu ? v / (1 + std::exp(-v)) : v;
  };
  for (const Activation a : {Activation::none, Activation::clip, Activation::silu}) {
    for (const bool first : {false, true}) {
      Epilogue e = {d.bias.data(), d.residual.data(), a, -1.0f, 2.0f};
      e.act_before_residual = first;
      for (const int threads : {1, 8}) {
        const std::vector<float> y = run(d, WinogradTile::four, e, threads, best_isa());
        for (size_t i = 0; i < y.size(); ++i) {
          const double sum = want[i] + d.bias[i % d.bias.size()];
          const double out = first ? act(a, sum) + d.residual[i] : act(a, sum + d.residual[i]);
          ASSERT_NEAR(y[i], out, most);
        }
      }
    }
  }
}

TEST(WinogradNhwc, AnImageDoesNotDependOnItsBatchMates) {
  const Data d = data_for(winograd_shape(23, 21, 33, 48, {1, 1, 1, 1}));
  for (const WinogradTile tile : {WinogradTile::two, WinogradTile::four}) {
    const std::vector<float> both = run(d, tile, {}, 3, best_isa());
    Data one = d;
    one.s.n = 1;
    one.x.assign(d.x.begin() + static_cast<int64_t>(d.x.size() / 2), d.x.end());
    one.residual.resize(d.residual.size() / 2);
    const std::vector<float> second = run(one, tile, {}, 1, best_isa());
    ASSERT_TRUE(std::equal(second.begin(), second.end(), both.begin() + static_cast<int64_t>(second.size())));
  }
}

TEST(WinogradNhwc, RoundingOfTheChosenTileStaysSmall) {
  for (const int64_t c : {16, 64, 128, 129, 256, 512}) {
    ConvShape s = winograd_shape(14, 14, c, 32, {1, 1, 1, 1});
    const Data d = data_for(s);
    const std::vector<double> want = sums(d);
    double largest = 0;
    for (const double v : want) largest = std::max(largest, std::abs(v));
    const std::vector<float> y = run(d, winograd_tile(s), {}, 1, best_isa());
    for (size_t i = 0; i < y.size(); ++i) ASSERT_LT(std::abs(y[i] - want[i]), 2e-5 * largest) << c;
  }
}

}  // namespace
}  // namespace trireme::cpu
