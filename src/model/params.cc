// Draws weights with a counter-based generator: each element is a function of seed, name and position.
#include "model/params.h"

#include <cmath>
#include <numbers>
#include <thread>

#include "base/rng.h"
#include "tensor/absent.h"
#include "tensor/repeated.h"

namespace trireme::model {
namespace {

/// Uniform in (0, 1): 32 bits, never 0, so that its logarithm is finite.
double open_uniform(uint32_t word) { return (static_cast<double>(word) + 0.5) * 0x1p-32; }

/// Four standard normal numbers from one block (Box & Muller 1958).
std::array<double, 4> normals(const base::PhiloxBlock& block) {
  std::array<double, 4> out;
  for (size_t i = 0; i < 4; i += 2) {
    const double radius = std::sqrt(-2 * std::log(open_uniform(block[i])));
    const double angle = 2 * std::numbers::pi * open_uniform(block[i + 1]);
    out[i] = radius * std::cos(angle);
    out[i + 1] = radius * std::sin(angle);
  }
  return out;
}

std::array<double, 4> uniforms(const base::PhiloxBlock& block) {
  std::array<double, 4> out;
  for (size_t i = 0; i < 4; ++i) out[i] = 2 * open_uniform(block[i]) - 1;
  return out;
}

int default_threads() {
  return static_cast<int>(std::min(8u, std::max(1u, std::thread::hardware_concurrency())));
}

}  // namespace

uint64_t name_hash(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

RandomParams::RandomParams(uint64_t seed) : seed_(seed), pool_(default_threads()) {}

tensor::Tensor RandomParams::get(const std::string& name, const tensor::Dims& dims, const Init& init) {
  tensor::Tensor t = tensor::Tensor::empty(tensor::DType::f32, dims);
  const auto values = t.mutable_data<float>();
  if (init.kind == Init::Kind::constant) {
    std::fill(values.begin(), values.end(), static_cast<float>(init.mean));
    return t;
  }
  const uint64_t stream = name_hash(name);
  const int64_t blocks = (t.elements() + 3) / 4;  // one Philox block gives four elements
  constexpr int64_t kBlocksPerPiece = 4096;
  pool_.for_range(blocks, kBlocksPerPiece, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const auto block = base::philox_block(seed_, stream, static_cast<uint64_t>(b));
      const auto four = init.kind == Init::Kind::normal ? normals(block) : uniforms(block);
      const size_t at = static_cast<size_t>(b) * 4, count = std::min<size_t>(4, values.size() - at);
      for (size_t i = 0; i < count; ++i)
        values[at + i] = static_cast<float>(init.mean + init.spread * four[i]);
    }
  });
  return t;
}

tensor::Tensor AbsentParams::get(const std::string& name, const tensor::Dims& dims, const Init& init) {
  constexpr int64_t kSmall = 1024;  // scalars and the like, with which passes may compute
  if (tensor::element_count(dims) <= kSmall) return drawn_.get(name, dims, init);
  return tensor::absent(tensor::DType::f32, dims);
}

tensor::Tensor RepeatedParams::get(const std::string& name, const tensor::Dims& dims, const Init& init) {
  constexpr int64_t kBlock = int64_t{4} << 20;
  if (init.kind == Init::Kind::constant || tensor::element_count(dims) < kBlock)
    return drawn_.get(name, dims, init);
  tensor::Tensor& block = blocks_[{init.kind, init.mean, init.spread}];
  if (!block.defined()) block = drawn_.get("block", {kBlock}, init);
  const uint64_t places = static_cast<uint64_t>(kBlock / tensor::kRepeatedUnit);
  return tensor::repeated(block, static_cast<int64_t>(name_hash(name) % places) * tensor::kRepeatedUnit,
                          dims);
}

}  // namespace trireme::model
