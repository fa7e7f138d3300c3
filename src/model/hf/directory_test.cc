// Tests Hugging Face directories: the tiny Llama against its reference, and every architecture written and
// read back.
#include "model/hf/directory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/files/file.h"
#include "model/hf/test_scratch.h"
#include "model/interpret.h"
#include "model/load/load.h"
#include "model/zoo/zoo.h"
#include "tests/test_data.h"

namespace trireme::model::hf {
namespace {

namespace fs = std::filesystem;
using tensor::Tensor;

TEST(HfDirectory, Stories260kContinuesAsItsReference) {
  const auto dir = tests::shared_data("llm/stories260K");
  if (!dir) GTEST_SKIP() << tests::kNoSharedData;
  const Model model = load_model((*dir / "hf").string());
  const base::Json reference = base::parse_json(base::read_file((*dir / "reference_greedy.json").string()));
  for (const base::Json& c : reference.at("cases").as_array()) {
    std::vector<int64_t> tokens;
    for (const base::Json& t : c.at("greedy_tokens").as_array()) tokens.push_back(t.as_int());
    const auto n = static_cast<int64_t>(tokens.size());
    const Tensor ids = Tensor::from<int64_t>({1, n}, std::span<const int64_t>(tokens));
    const Tensor logits = interpret(model.graph, {ids})[0];
    const auto row = [&](int64_t t) {
      return logits.data<float>().subspan(static_cast<size_t>(t) * 512, 512);
    };
    const int64_t prompt = static_cast<int64_t>(c.at("prompt_tokens").size());
    double error = 0;
    for (size_t i = 0; i < 512; ++i) {
      error = std::max(error, std::abs(double{row(prompt - 1)[i]} - c.at("first_logits").at(i).as_double()));
    }
    EXPECT_LT(error, 2e-5);
    for (int64_t t = prompt - 1; t + 1 < n; ++t) {
      const auto best = std::max_element(row(t).begin(), row(t).end()) - row(t).begin();
      ASSERT_EQ(best, tokens[static_cast<size_t>(t + 1)]) << "token " << t + 1;
    }
  }
}

std::vector<Tensor> inputs_of(const ir::Graph& g) {
  std::vector<Tensor> in;
  for (ir::ValueId id : g.inputs()) {
    const tensor::TensorType& type = g.type(id);
    if (type.dtype == tensor::DType::f32) {
      tensor::Dims dims{2};
      for (size_t i = 1; i < type.shape.rank(); ++i) dims.push_back(type.shape[i].value());
      Tensor image = Tensor::empty(type.dtype, dims);
      for (size_t i = 0; float& v : image.mutable_data<float>()) v = std::sin(static_cast<float>(++i));
      in.push_back(image);
    } else {
      const bool is_mask = g.value(id).name == "attention_mask";
      in.push_back(is_mask ? Tensor::from<int64_t>({2, 3}, {1, 1, 1, 1, 1, 0})
                           : Tensor::from<int64_t>({2, 3}, {1, 2, 3, 4, 5, 6}));
    }
  }
  return in;
}

TEST(HfDirectory, WhatIsSavedIsLoaded) {
  const std::vector<std::vector<std::string>> cases{
      {"gpt2", "layers=1", "width=16", "heads=2", "vocabulary=11", "positions=8"},
      {"gpt2", "layers=1", "width=16", "heads=2", "vocabulary=11", "positions=8", "is_tied=false"},
      {"nanogpt", "layers=2", "width=16", "heads=2"},  // has no biases: zeros are written
      {"llama", "layers=1", "width=16", "heads=4", "kv_heads=2", "inner=24", "vocabulary=11", "positions=8"},
      {"llama", "layers=1", "width=16", "heads=2", "inner=24", "vocabulary=11", "rope_factor=2"},
      {"llama", "layers=1", "width=16", "heads=2", "inner=24", "rope_factor=8", "rope_original=16"},
      {"bert", "layers=1", "width=16", "heads=2", "vocabulary=11", "positions=8", "head=masked_lm"},
      {"bert", "layers=1", "width=16", "heads=2", "vocabulary=11", "head=masked_lm", "is_tied=false"},
      {"bert", "layers=1", "width=16", "heads=2", "vocabulary=11", "head=classification", "classes=3"},
      {"vit_tiny", "layers=1", "width=16", "heads=2", "classes=3"},
      {"resnet18", "size=32", "classes=3"}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c[0] + " " + c.back());
    const Model built = zoo::build(c[0], std::span(c).subspan(1));
    const Scratch scratch(c[0]);
    save_directory(built, scratch.path);
    const Model loaded = load_model(scratch.path);
    EXPECT_EQ(loaded.format, "huggingface");
    ASSERT_EQ(loaded.graph.output_names(), built.graph.output_names());
    const auto want = interpret(built.graph, inputs_of(built.graph));
    const auto got = interpret(loaded.graph, inputs_of(loaded.graph));
    EXPECT_TRUE(got[0].same_as(want[0]));
  }
}

TEST(HfDirectory, TokenizersComeAlong) {
  const Scratch from("from"), to("to");
  const std::vector<std::string> small{"layers=1", "width=8", "heads=2", "vocabulary=11", "positions=8"};
  Model model = zoo::build("gpt2", small);
  fs::create_directories(from.path);
  base::write_file_atomic(from.path + "/vocab.json", "{}");
  save_directory(model, to.path, {.companions = from.path});
  EXPECT_EQ(base::read_file(to.path + "/vocab.json"), "{}");
}

TEST(HfDirectory, ShardsAreOneCheckpoint) {
  const Scratch scratch("shards");
  const std::vector<std::string> small{"layers=2", "width=8", "heads=2", "vocabulary=11", "positions=8"};
  const Model built = zoo::build("bert", small);
  save_directory(built, scratch.path);
  const fs::path root(scratch.path);
  NamedTensors first, second;
  base::Json map = base::Json::object();
  {
    const Safetensors whole = Safetensors::open((root / "model.safetensors").string());
    for (const auto& [name, t] : whole.tensors()) {
      const bool is_first = name.find("layer.0") != std::string::npos;
      (is_first ? first : second).emplace_back(name, t.clone());
      map.set(name, is_first ? "model-00001-of-00002.safetensors" : "model-00002-of-00002.safetensors");
    }
  }
  fs::remove(root / "model.safetensors");
  save_safetensors((root / "model-00001-of-00002.safetensors").string(), first);
  save_safetensors((root / "model-00002-of-00002.safetensors").string(), second);
  const base::Json index = base::Json::object({{"weight_map", map}});
  base::write_file_atomic((root / "model.safetensors.index.json").string(), index.dump());
  const auto want = interpret(built.graph, inputs_of(built.graph));
  EXPECT_TRUE(interpret(load_model(scratch.path).graph, inputs_of(built.graph))[0].same_as(want[0]));
  fs::remove(root / "model-00002-of-00002.safetensors");
  EXPECT_THROW(load_model(scratch.path), base::Error);
}

TEST(HfDirectory, EncodersKeepTheirPooler) {
  const Scratch from("pooler"), to("pooler_again");
  const std::vector<std::string> small{"layers=1",  "width=8",       "heads=2",
                                       "head=none", "vocabulary=11", "positions=8"};
  const Model built = zoo::build("bert", small);
  save_directory(built, from.path);
  NamedTensors tensors;
  {
    const Safetensors whole = Safetensors::open(from.path + "/model.safetensors");
    for (const auto& [name, t] : whole.tensors()) tensors.emplace_back(name, t.clone());
  }
  tensors.emplace_back("pooler.dense.weight", Tensor::zeros(tensor::DType::f32, {8, 8}));
  tensors.emplace_back("pooler.dense.bias", Tensor::zeros(tensor::DType::f32, {8}));
  save_safetensors(from.path + "/model.safetensors", tensors);
  save_directory(load_model(from.path), to.path);
  EXPECT_NE(Safetensors::open(to.path + "/model.safetensors").find("pooler.dense.weight"), nullptr);
}

TEST(HfDirectory, RefusesWhatTransformersLacks) {
  const Scratch scratch("refused");
  EXPECT_THROW(save_directory(zoo::build("mlp"), scratch.path), base::Error);
  const std::vector<std::string> small{"layers=1", "width=8", "heads=2", "vocabulary=11", "positions=8"};
  try {
    save_directory(zoo::build("gpt2", small), NamedTensors{}, scratch.path);
    FAIL() << "weights were missing";
  } catch (const base::Error& e) {
    EXPECT_EQ(e.code(), base::ErrorCode::not_found);
  }
}

TEST(HfDirectory, RefusesOptionsByName) {
  const Scratch scratch("options");
  fs::create_directories(scratch.path);
  const auto message = [&](const std::string& config) -> std::string {
    base::write_file_atomic(scratch.path + "/config.json", config);
    try {
      load_directory(scratch.path);
    } catch (const base::Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_NE(
      message(R"({"model_type": "t5"})").find("supported: bert, gpt2, vit, resnet, llama, mistral, qwen2"),
      std::string::npos);
  const std::string llama = R"({"model_type": "llama", "vocab_size": 8, "max_position_embeddings": 8,
      "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8, )";
  EXPECT_NE(message(llama + R"("rope_scaling": {"rope_type": "spiral"}})").find("'spiral'"),
            std::string::npos);
  EXPECT_NE(message(llama + R"("residual_multiplier": 2})").find("residual_multiplier"), std::string::npos);
}

}  // namespace
}  // namespace trireme::model::hf
