// Compares the MiniLM encoder with Transformers (f64 reference of tools/oracles/minilm_embeddings.py), and
// tests broken directories.
#include "model/hf/bert.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/files/file.h"
#include "base/rng.h"
#include "model/interpret.h"
#include "model/npy.h"
#include "tests/test_data.h"

namespace trireme::model::hf {
namespace {

using tensor::Tensor;

double largest_error(std::span<const float> got, std::span<const float> want) {
  double error = 0;
  for (size_t i = 0; i < want.size(); ++i)
    error = std::max(error, std::abs(double{got[i]} - double{want[i]}));
  return error;
}

TEST(Bert, MiniLmAgreesWithTransformers) {
  const auto dir = tests::encoder_dir();
  if (!dir) GTEST_SKIP() << tests::kNoEncoder;
  const auto data = [](const char* name) {
    return read_npy((tests::source_dir() / "src/model/hf/testdata" / name).string());
  };
  const Tensor ids = data("minilm_ids.npy"), mask = data("minilm_mask.npy");
  const Tensor hidden = data("minilm_hidden_0.npy"), embedding = data("minilm_embedding.npy");
  const Model model = load_bert(dir->string());
  ASSERT_EQ(model.graph.inputs().size(), 2u);
  const auto out = interpret(model.graph, {ids, mask});
  ASSERT_EQ(out[0].dims(), (tensor::Dims{ids.dims()[0], ids.dims()[1], 384}));
  ASSERT_EQ(out[1].dims(), embedding.dims());
  // The first sentence comes first in [sentences, tokens, width].
  const auto first = out[0].data<float>().first(static_cast<size_t>(hidden.elements()));
  EXPECT_LT(largest_error(first, hidden.data<float>()), 1e-5);
  EXPECT_LT(largest_error(out[1].data<float>(), embedding.data<float>()), 1e-6);
}

TEST(Bert, TokenTypesOfZeroChangeNothing) {
  const auto dir = tests::encoder_dir();
  if (!dir) GTEST_SKIP() << tests::kNoEncoder;
  const Tensor ids = Tensor::from<int64_t>({1, 4}, {101, 2024, 7592, 102});
  const Tensor ones = Tensor::from<int64_t>({1, 4}, {1, 1, 1, 1}),
               zeros = Tensor::zeros(tensor::DType::i64, {1, 4});
  const auto plain = interpret(load_bert(dir->string()).graph, {ids, ones});
  const auto typed = interpret(load_bert(dir->string(), {.has_token_types = true}).graph, {ids, ones, zeros});
  EXPECT_LT(largest_error(plain[1].data<float>(), typed[1].data<float>()), 1e-6);
}

TEST(Bert, RefusesOtherModels) {
  const auto dir = std::filesystem::temp_directory_path() / "trireme_bert_test";
  std::filesystem::create_directories(dir);
  const auto error_of = [&](const std::string& config) {
    base::write_file_atomic((dir / "config.json").string(), config);
    try {
      load_bert(dir.string());
    } catch (const base::Error& e) {
      return e.code();
    }
    return base::ErrorCode::internal;
  };
  EXPECT_EQ(error_of(R"({"model_type": "t5"})"), base::ErrorCode::unsupported);
  EXPECT_EQ(error_of("{"), base::ErrorCode::invalid_argument);
  EXPECT_EQ(error_of(R"({"model_type": "bert", "hidden_size": -1})"), base::ErrorCode::invalid_argument);
  std::filesystem::remove_all(dir);
}

}  // namespace
}  // namespace trireme::model::hf
