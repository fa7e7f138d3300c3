// Where the weights of a network come from: drawn at random, or read from a checkpoint.
#pragma once

#include <cmath>
#include <map>
#include <string>
#include <string_view>
#include <tuple>

#include "base/threads/thread_pool.h"
#include "tensor/tensor.h"

namespace trireme::model {

/// How a weight begins when no checkpoint has it.
struct Init {
  enum class Kind { constant, normal, uniform };
  Kind kind = Kind::constant;
  double mean = 0;    ///< the constant, or the middle of the distribution
  double spread = 0;  ///< normal: standard deviation; uniform: half of the width

  static Init zeros() { return {}; }
  static Init ones() { return {Kind::constant, 1, 0}; }
  static Init normal(double deviation, double mean = 0) { return {Kind::normal, mean, deviation}; }
  static Init uniform(double bound) { return {Kind::uniform, 0, bound}; }
  /// He et al. 2015: variance 2 / fan keeps the variance through a rectifier.
  static Init he(int64_t fan) { return normal(std::sqrt(2.0 / static_cast<double>(fan))); }
};

/// A weight as a file holds it.
struct StoredParam {
  /// f32 of the weight's extents; or rows: u8 [rows, bytes of a row] in blocks, or what dequantize_weights
  /// takes (ops/weight_only).
  tensor::Tensor data;
  std::string format = {};               ///< of the blocks (tensor/blocks); empty: none
  tensor::Tensor scale = {}, zero = {};  ///< of groups along the rows, or undefined
  tensor::Tensor order = {};             ///< of the columns, where they are stored in another
  int64_t bits = 8, group = 0;           ///< of dequantize_weights
  std::string from = {};                 ///< how the file has it, for people
  bool is_plain() const { return format.empty() && data.dtype() == tensor::DType::f32; }
};

/// Gives each weight by its name. Builders of networks ask in the order of the graph.
class ParamSource {
 public:
  virtual ~ParamSource() = default;
  /// f32 of extents `dims`. Throws not_found or invalid_argument, naming the weight.
  virtual tensor::Tensor get(const std::string& name, const tensor::Dims& dims, const Init& init) = 0;
  /// The same as it is stored.
  virtual StoredParam stored(const std::string& name, const tensor::Dims& dims, const Init& init) {
    return {get(name, dims, init), {}};
  }
};

/// Draws every weight by its Init from Philox(seed; stream = hash of the name): a weight depends on no other
/// weight, on no order and on no number of threads.
class RandomParams : public ParamSource {
 public:
  explicit RandomParams(uint64_t seed);
  tensor::Tensor get(const std::string& name, const tensor::Dims& dims, const Init& init) override;

 private:
  uint64_t seed_;
  base::ThreadPool pool_;
};

/// For measuring networks that are too large to draw: weights of one Init repeat one block of 4 Mi drawn
/// elements, each from a place of its own (tensor/repeated.h). Constants as ever.
class RepeatedParams : public ParamSource {
 public:
  explicit RepeatedParams(uint64_t seed) : drawn_(seed) {}
  tensor::Tensor get(const std::string& name, const tensor::Dims& dims, const Init& init) override;

 private:
  RandomParams drawn_;
  std::map<std::tuple<Init::Kind, double, double>, tensor::Tensor> blocks_;
};

/// For networks whose programs are looked at and not run: large weights have no content (tensor/absent.h).
class AbsentParams : public ParamSource {
 public:
  tensor::Tensor get(const std::string& name, const tensor::Dims& dims, const Init& init) override;

 private:
  RandomParams drawn_{0};
};

/// 64-bit FNV-1a of a text: the stream of the weight of that name.
uint64_t name_hash(std::string_view name);

}  // namespace trireme::model
