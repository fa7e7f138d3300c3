// Codecs of block formats: equal to those of the Python package gguf on made-up bytes and numbers, near what
// they encode, and steady on hostile input.
#include "tensor/blocks/block_format.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/rng.h"

namespace trireme::tensor {
namespace {

/// 64-bit FNV-1a.
uint64_t hash_of(const uint8_t* bytes, size_t count) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (size_t i = 0; i < count; ++i) hash = (hash ^ bytes[i]) * 0x100000001b3u;
  return hash;
}

/// Bytes by a formula that reaches every value; scales among them are any numbers.
std::vector<uint8_t> made_bytes(int64_t count) {
  std::vector<uint8_t> bytes(static_cast<size_t>(count));
  for (size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<uint8_t>(i * i * 31 + i / 7 * 5 + 3 * i + 1);
  return bytes;
}
/// Numbers in [-0.1, 0.1) by a formula.
std::vector<float> made_numbers(int64_t count) {
  std::vector<float> x(static_cast<size_t>(count));
  for (size_t i = 0; i < x.size(); ++i) {
    const auto bits = static_cast<int32_t>(static_cast<uint32_t>(i) * 2654435761u + 12345u);
    x[i] = static_cast<float>(bits) * 0x1p-31f * 0.1f;
  }
  return x;
}
std::vector<float> decoded(const BlockFormat& f, const std::vector<uint8_t>& bytes) {
  const auto blocks = static_cast<int64_t>(bytes.size()) / f.bytes;
  std::vector<float> out(static_cast<size_t>(blocks * f.weights));
  f.decode(bytes.data(), blocks, out.data());
  return out;
}
std::vector<uint8_t> encoded(const BlockFormat& f, const std::vector<float>& x,
                             const float* importance = nullptr) {
  const auto blocks = static_cast<int64_t>(x.size()) / f.weights;
  std::vector<uint8_t> out(static_cast<size_t>(blocks * f.bytes));
  f.encode(x.data(), blocks, out.data(), importance);
  return out;
}

/// What gguf 0.19 makes of made_bytes of kBlocks blocks (all NaN with the bits 0x7fc00000), and of
/// made_numbers of as many; 0 where it has no encoder. tools/oracles/block_formats.py writes these rows.
constexpr int64_t kBlocks = 512;
struct Golden {
  const char* format;
  uint64_t decoded, encoded;
};
constexpr Golden kGolden[] = {
    {"q4_0", 0x7c6f971545e79cc2u, 0x1f4891f4b856b7au},
    {"q4_1", 0xe514aa5bb2b60a0fu, 0xbc5ea36bf7f6131du},
    {"q5_0", 0x2bd29862ae989d63u, 0x912088851003029au},
    {"q5_1", 0x9922ded2c727cdc0u, 0x94a29fd1a06f01b5u},
    {"q8_0", 0x7b6a9b07b7a81034u, 0x6c98ff52ee2b52e1u},
    {"q2_k", 0xec47f6368c9337a5u, 0},
    {"q3_k", 0x70cb5eecf7c01dfdu, 0},
    {"q4_k", 0x668543b410078366u, 0},
    {"q5_k", 0xc95917141fdbd4acu, 0},
    {"q6_k", 0x8105246b724f03d5u, 0},
    {"iq4_nl", 0x4fea40715bc69ad0u, 0},
    {"mxfp4", 0x533e98e0e2acfbc6u, 0xebf3606fb8a7783u},
};

TEST(BlockFormats, MadeBytesAndNumbersAsThePackageDoes) {
  ASSERT_EQ(std::size(kGolden), block_formats().size());
  for (const Golden& g : kGolden) {
    const BlockFormat& f = need_block_format(g.format);
    std::vector<float> out = decoded(f, made_bytes(kBlocks * f.bytes));
    for (float& v : out) v = std::isnan(v) ? std::bit_cast<float>(0x7fc00000) : v;
    EXPECT_EQ(hash_of(reinterpret_cast<const uint8_t*>(out.data()), out.size() * 4), g.decoded) << g.format;
    if (g.encoded == 0) continue;
    const std::vector<uint8_t> bytes = encoded(f, made_numbers(kBlocks * f.weights));
    EXPECT_EQ(hash_of(bytes.data(), bytes.size()), g.encoded) << g.format;
  }
}

double relative_error(const std::vector<float>& x, const std::vector<float>& y) {
  double missed = 0, all = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    missed += std::pow(static_cast<double>(x[i]) - static_cast<double>(y[i]), 2);
    all += std::pow(static_cast<double>(x[i]), 2);
  }
  return std::sqrt(missed / all);
}

std::vector<float> normal_numbers(int64_t count, uint64_t seed) {
  base::Rng rng(seed);
  std::vector<float> x(static_cast<size_t>(count));
  for (float& v : x) v = static_cast<float>(rng.normal()) * 0.02f;
  return x;
}

TEST(BlockFormats, WeightsComeBackNearly) {
  // For normal weights; a format that is not scaled well misses these by far.
  const std::pair<const char*, double> most[] = {
      {"q4_0", 0.09}, {"q4_1", 0.085}, {"q5_0", 0.045}, {"q5_1", 0.042}, {"q8_0", 0.006},  {"q2_k", 0.31},
      {"q3_k", 0.17}, {"q4_k", 0.075}, {"q5_k", 0.038}, {"q6_k", 0.02},  {"iq4_nl", 0.08}, {"mxfp4", 0.13}};
  ASSERT_EQ(std::size(most), block_formats().size());
  for (const auto& [name, bound] : most) {
    const BlockFormat& f = need_block_format(name);
    const std::vector<float> x = normal_numbers(64 * f.weights, 3);
    const double error = relative_error(x, decoded(f, encoded(f, x)));
    EXPECT_LT(error, bound) << name;
    EXPECT_GT(error, bound / 3) << name << ": the bound tells nothing";
  }
}

TEST(BlockFormats, ImportantWeightsComeNearer) {
  for (const BlockFormat& f : block_formats()) {
    if (f.weights == 32 && f.name != "iq4_nl") continue;
    const std::vector<float> x = normal_numbers(32 * f.weights, 5);
    std::vector<float> importance(static_cast<size_t>(f.weights), 1e-3f);
    for (size_t i = 0; i < importance.size(); i += 4) importance[i] = 1;
    const auto error = [&](const std::vector<float>& y) {
      double sum = 0;
      for (size_t i = 0; i < x.size(); i += 4) sum += std::pow(double(x[i]) - double(y[i]), 2);
      return sum;
    };
    EXPECT_LT(error(decoded(f, encoded(f, x, importance.data()))), error(decoded(f, encoded(f, x))))
        << f.name;
  }
}

TEST(BlockFormats, EncodedNumbersStandWhereTheyStood) {
  for (const BlockFormat& f : block_formats()) {
    for (int64_t at : {int64_t{0}, int64_t{1}, f.weights / 2 - 1, f.weights / 2, f.weights - 1}) {
      std::vector<float> x(static_cast<size_t>(f.weights));
      x[static_cast<size_t>(at)] = -2;
      const std::vector<float> y = decoded(f, encoded(f, x));
      for (size_t i = 0; i < y.size(); ++i) EXPECT_NEAR(y[i], x[i], 0.02) << f.name << " " << at << " " << i;
    }
  }
}

TEST(BlockFormats, HostileNumbersAndBytes) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const BlockFormat& f : block_formats()) {
    for (const float value : {kInf, -kInf, NAN, 3e38f, -3e38f, 1e-45f, -1e-39f, 0.0f, -0.0f}) {
      std::vector<float> x = normal_numbers(2 * f.weights, 9);
      x[3] = value;
      const std::vector<float> y = decoded(f, encoded(f, x));
      for (size_t i = static_cast<size_t>(f.weights); i < y.size(); ++i)
        EXPECT_TRUE(std::isfinite(y[i])) << f.name << ": the block behind that of " << value;
      std::fill(x.begin(), x.end(), value);
      decoded(f, encoded(f, x));
    }
    for (const uint8_t byte : {uint8_t{0}, uint8_t{0x7f}, uint8_t{0x80}, uint8_t{0xff}})
      decoded(f, std::vector<uint8_t>(static_cast<size_t>(3 * f.bytes), byte));
  }
}

TEST(BlockFormats, AreFoundByNameAndNumber) {
  for (const BlockFormat& f : block_formats()) {
    EXPECT_EQ(find_block_format(f.name), &f);
    EXPECT_EQ(find_block_format_by_gguf(f.gguf_type), &f);
    EXPECT_EQ(f.depth(f.row_bytes(3 * f.weights)), 3 * f.weights);
  }
  EXPECT_EQ(find_block_format("q9_9"), nullptr);
  EXPECT_EQ(find_block_format_by_gguf(-1), nullptr);
  try {
    need_block_format("q9_9");
    FAIL();
  } catch (const base::Error& e) {
    EXPECT_NE(e.message().find("q4_0"), std::string::npos) << e.message();
  }
}

}  // namespace
}  // namespace trireme::tensor
