// Compares the work counted from the schemas with the formulas of papers: 6 N per token, and the attention.
#include <gtest/gtest.h>

#include "model/zoo/gpt2.h"
#include "model/zoo/llama.h"
#include "model/zoo/resnet.h"
#include "train/flop.h"

namespace trireme {
namespace {

/// Weights that nobody reads: empty tensors, whose memory is never touched.
class EmptyParams : public model::ParamSource {
 public:
  tensor::Tensor get(const std::string&, const tensor::Dims& dims, const model::Init&) override {
    return tensor::Tensor::empty(tensor::DType::f32, dims);
  }
};

/// The number of weights that are factors of products: all but the position embedding.
double product_weights(const ir::Graph& g) {
  double count = 0;
  for (const ir::Value& v : g.values()) {
    const bool is_position = v.name == "transformer.wpe.weight";
    if (v.kind == ir::ValueKind::param && !is_position) count += static_cast<double>(v.data.elements());
  }
  return count;
}

/// Forward and backward work of one token: 3 x 2 flop for each weight, and for causal attention two products
/// of width h over the (s + 1) / 2 keys that a token sees on average, again three times.
double flop_per_token(double weights, double layers, double width, double seq) {
  return 6 * weights + 6 * layers * width * (seq + 1);
}

TEST(NetworkFlop, Gpt2IsSixNAndAttention) {
  EmptyParams empty;
  const ir::Graph graph = model::zoo::gpt2({}, empty).graph;
  for (const auto& [batch, seq] : {std::pair<int64_t, int64_t>{4, 256}, {1, 1024}, {8, 64}}) {
    const double tokens = static_cast<double>(batch * seq);
    const double want = tokens * flop_per_token(product_weights(graph), 12, 768, static_cast<double>(seq));
    EXPECT_NEAR(3 * train::forward_flop(graph, {{batch, seq}}) / want, 1, 0.01) << batch << " x " << seq;
  }
}

TEST(NetworkFlop, LlamaIsSixNAndAttention) {
  EmptyParams empty;
  model::zoo::LlamaConfig config;  // the head is tied, so the embedding is also a factor of a product
  config.width = 1024;
  config.heads = 16;
  config.kv_heads = 4;
  config.inner = 2816;
  config.layers = 8;
  config.positions = 512;
  const ir::Graph graph = model::zoo::llama(config, empty).graph;
  const double want = 2 * 512 * flop_per_token(product_weights(graph), 8, 1024, 512);
  EXPECT_NEAR(3 * train::forward_flop(graph, {{2, 512}}) / want, 1, 0.01);
}

TEST(NetworkFlop, Resnet50IsFourBillionProducts) {
  EmptyParams empty;
  const ir::Graph graph = model::zoo::resnet({}, empty).graph;
  // He et al. 2015 report 3.8e9 multiply-adds with the stride in the 1x1 convolution; for the stride in the
  // 3x3, as here, torchvision states 4.09e9.
  EXPECT_NEAR(train::forward_flop(graph, {{1, 3, 224, 224}}) / (2 * 4.09e9), 1, 0.01);
}

}  // namespace
}  // namespace trireme
