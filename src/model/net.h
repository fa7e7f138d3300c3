// The layers that networks are made of: each adds its nodes and takes its weights by name from a source.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "model/builder.h"
#include "model/model.h"
#include "model/params.h"

namespace trireme::model {

struct LinearSpec {
  int64_t in, out;
  Init init = Init::zeros();
  bool has_bias = true;
  Init bias = Init::zeros();
};

/// Padding keeps the size at stride 1; `bias` counts only without a norm.
struct ConvSpec {
  int64_t in, out, kernel, stride = 1;
  bool is_padded = true;
};

struct AttentionSpec {
  int64_t heads;
  int64_t kv_heads;  ///< divides heads
  int64_t head_dim;
  bool is_causal = false;
  int64_t window = 0;  ///< keys that a query sees, its own among them; 0: all that causality leaves it
  double scale = 0;    ///< of the scores; 0: 1 / sqrt(head_dim)
  double softcap = 0;  ///< scores become cap tanh(score / cap); 0: off
  ir::ValueId sinks = ir::kNoValue;  ///< [heads]: one more score of each head, which has no value
};

/// A place in a network: nodes and weights added here carry its path, "encoder.layer.3" for example.
/// Cheap to copy; the graph and the source outlive it.
class Net {
 public:
  Net(ir::Graph& graph, ParamSource& params, std::string path = {})
      : graph_(graph), params_(params), path_(std::move(path)) {}

  /// The place `name` inside this one: in("layer").in(3) or in("layer.3"); this one for "".
  Net in(std::string_view name) const;
  Net in(int64_t number) const { return in(std::to_string(number)); }

  ir::Graph& graph() const { return graph_; }
  const std::string& path() const { return path_; }
  /// A builder whose nodes come from here.
  Builder builder() const { return Builder(graph_).within(path_); }
  ir::ValueId op(std::string_view name, std::vector<ir::ValueId> in, ir::Attrs attrs = {}) const;
  /// The weight `path.name` as f32 of extents `dims`: a param, or what makes numbers of stored ones.
  ir::ValueId param(std::string_view name, const tensor::Dims& dims, const Init& init) const;

  /// x [..., in] -> [..., out], with `weight` [out, in] and `bias` [out] of this place.
  ir::ValueId linear(ir::ValueId x, const LinearSpec& spec) const;
  /// ids i64 [...] -> [..., width], with `weight` [rows, width] of this place.
  ir::ValueId embedding(ir::ValueId ids, int64_t rows, int64_t width, const Init& init) const;
  /// Over the last axis, with `weight` and, if it has one, `bias` [width] of this place.
  ir::ValueId layer_norm(ir::ValueId x, int64_t width, double epsilon, bool has_bias = true) const;
  /// x [batch, in, h, w] -> [batch, out, h', w'], with `weight` [out, in, k, k] and, if it has one, `bias`.
  ir::ValueId conv(ir::ValueId x, const ConvSpec& spec, const Init& init, bool has_bias) const;
  /// x with each element dropped with probability `ratio` in training; no node at 0.
  ir::ValueId dropout(ir::ValueId x, double ratio) const;
  /// q [batch, queries, heads * head_dim], k and v [batch, keys, kv_heads * head_dim], mask i64
  /// [batch, keys] or kNoValue -> [batch, queries, heads * head_dim].
  ir::ValueId attention(ir::ValueId q, ir::ValueId k, ir::ValueId v, ir::ValueId mask,
                        const AttentionSpec& spec) const;
  /// The activation "relu", "gelu", "gelu_new" (tanh form), "gelu_pytorch_tanh", "silu" or "tanh".
  /// Throws unsupported for another name.
  ir::ValueId activation(ir::ValueId x, const std::string& name) const;
  /// x [batch, channels, h, w] -> the largest (mean) of each window of `size`.
  ir::ValueId max_pool(ir::ValueId x, int64_t size, int64_t stride, int64_t pad) const;

 private:
  ir::Graph& graph_;
  ParamSource& params_;
  std::string path_;
};

/// i64 [batch, seq], symbolic.
tensor::TensorType token_type();
/// f32 [batch, channels, size, size] with a symbolic batch.
tensor::TensorType image_type(int64_t channels, int64_t size);
/// `length(ids)` rows of a table from `first` on: rows [positions, width], ids [batch, seq] -> [seq, width].
ir::ValueId leading_rows(const Net& at, ir::ValueId rows, ir::ValueId ids, int64_t first = 0);
/// Makes `y` the output `name`, sorts the graph and names the model.
void finish_model(Model& model, const std::string& name, ir::ValueId y, const std::string& output);

}  // namespace trireme::model
