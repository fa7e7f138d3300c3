// Tests adapters written by PEFT: what is read, what is refused with which name, and mutated files.
#include "model/hf/adapter.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <functional>
#include <random>

#include "model/hf/test_scratch.h"
#include "tests/adapter_files.h"

namespace trireme::model::hf {
namespace {

using base::ErrorCode;
using base::Json;
using tensor::DType;
using tensor::Tensor;

const ModuleSizes kModules{{"model.layers.0.self_attn.q_proj", {12, 8}},
                           {"model.layers.0.self_attn.k_proj", {12, 4}},
                           {"model.layers.0.self_attn.v_proj", {12, 4}},
                           {"model.layers.0.mlp.down_proj", {20, 12}}};
const std::vector<tests::AdapterModuleFile> kFile{{"model.layers.0.self_attn.q_proj", 12, 8, 4},
                                                  {"model.layers.0.mlp.down_proj", 20, 12, 4}};

TEST(Adapter, IsReadByModuleWithItsScale) {
  const Scratch scratch("read");
  const NamedTensors tensors = tests::adapter_factors(kFile, 1);
  tests::write_adapter(scratch.path, tests::adapter_config(4, 6), tensors);
  const Adapter adapter = read_adapter(scratch.path, kModules, Json());
  ASSERT_EQ(adapter.parts.size(), 2u);
  EXPECT_EQ(adapter.rank(), 4);
  EXPECT_EQ(adapter_rank(scratch.path), 4);
  for (const AdapterPart& part : adapter.parts) {
    const size_t first = part.module.ends_with("q_proj") ? 0 : 2;
    EXPECT_EQ(tensors[first].first, "base_model.model." + part.module + ".lora_A.weight");
    EXPECT_TRUE(part.a.same_as(tensors[first].second));
    EXPECT_TRUE(part.b.same_as(tensors[first + 1].second));
    EXPECT_DOUBLE_EQ(part.scale, 1.5);
  }
}

TEST(Adapter, TakesRanksScalesAndNamesAsPeftDoes) {
  const Scratch scratch("patterns");
  // An adapter saved from the body alone, with two different ranks, in 16 bits.
  std::vector<tests::AdapterModuleFile> modules = kFile;
  for (auto& m : modules) m.name = m.name.substr(6);
  modules[1].rank = 2;
  NamedTensors tensors = tests::adapter_factors(modules, 1);
  for (auto& [name, t] : tensors) {
    Tensor half = Tensor::empty(DType::bf16, t.dims());
    for (int64_t i = 0; i < t.elements(); ++i)
      std::memcpy(half.mutable_raw() + 2 * i, t.raw() + 4 * i + 2, 2);
    t = half;
  }
  Json config = tests::adapter_config(4, 6);
  config.set("use_rslora", true);
  config.set("rank_pattern", Json::object({{"mlp.down_proj", 2}}));
  config.set("alpha_pattern", Json::object({{"q_proj", 8}}));
  config.set("target_modules", Json::array({"q_proj", "down_proj"}));
  tests::write_adapter(scratch.path, config, tensors);
  const Adapter adapter = read_adapter(scratch.path, kModules, Json());
  ASSERT_EQ(adapter.parts.size(), 2u);
  for (const AdapterPart& part : adapter.parts) {
    EXPECT_TRUE(kModules.contains(part.module)) << part.module;
    EXPECT_EQ(part.a.dtype(), DType::bf16);
    const bool is_q = part.module.ends_with("q_proj");
    EXPECT_EQ(part.rank(), is_q ? 4 : 2);
    EXPECT_DOUBLE_EQ(part.scale, is_q ? 8 / 2.0 : 6 / std::sqrt(2.0));
  }
}

TEST(Adapter, TheFirstPatternThatFitsCounts) {
  const Scratch scratch("first");
  for (const bool is_long_first : {true, false}) {
    Json alphas = Json::object({}), config = tests::adapter_config(4, 6);
    if (is_long_first) alphas.set("model.layers.0.mlp.down_proj", 64);
    alphas.set("down_proj", 8);
    if (!is_long_first) alphas.set("model.layers.0.mlp.down_proj", 64);
    config.set("alpha_pattern", alphas);
    config.set("init_lora_weights", "eva");
    config.set("eva_config", Json::object({{"rho", 2.0}}));
    tests::write_adapter(scratch.path, config, tests::adapter_factors(kFile, 1));
    for (const AdapterPart& part : read_adapter(scratch.path, kModules, Json()).parts) {
      const double want = is_long_first ? 16 : 2;
      EXPECT_DOUBLE_EQ(part.scale, part.module.ends_with("down_proj") ? want : 1.5);
    }
  }
}

TEST(Adapter, PartsWhatACheckpointJoins) {
  const Scratch scratch("joined");
  const NamedTensors tensors = tests::adapter_factors({{"model.layers.0.self_attn.qkv_proj", 12, 16, 4}}, 1);
  tests::write_adapter(scratch.path, tests::adapter_config(4, 4), tensors);
  const Json base = Json::object({{"model_type", "phi3"},
                                  {"vocab_size", 32},
                                  {"max_position_embeddings", 16},
                                  {"hidden_size", 12},
                                  {"num_hidden_layers", 1},
                                  {"num_attention_heads", 6},
                                  {"num_key_value_heads", 2},
                                  {"head_dim", 2},
                                  {"intermediate_size", 20},
                                  {"pad_token_id", 0}});
  ModuleSizes sizes = kModules;
  sizes["model.layers.0.self_attn.q_proj"].out = 12;
  // 6 heads of 2 channels, then 2 key heads: rows 0..12, 12..16, 16..20 of the joined matrix.
  EXPECT_THROW(read_adapter(scratch.path, sizes, base), base::Error);
  const NamedTensors whole = tests::adapter_factors({{"model.layers.0.self_attn.qkv_proj", 12, 20, 4}}, 1);
  tests::write_adapter(scratch.path, tests::adapter_config(4, 4), whole);
  const Adapter adapter = read_adapter(scratch.path, sizes, base);
  ASSERT_EQ(adapter.parts.size(), 3u);
  const char* names[] = {"q_proj", "k_proj", "v_proj"};
  const int64_t begins[] = {0, 12, 16, 20};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(adapter.parts[i].module, std::string("model.layers.0.self_attn.") + names[i]);
    EXPECT_TRUE(adapter.parts[i].a.same_as(whole[0].second));
    EXPECT_TRUE(adapter.parts[i].b.same_as(whole[1].second.rows(begins[i], begins[i + 1])));
  }
}

TEST(Adapter, RefusesByName) {
  const Scratch scratch("refused");
  const auto refusal = [&](ErrorCode code, const std::string& word,
                           const std::function<void(Json&, NamedTensors&)>& change) {
    Json config = tests::adapter_config(4, 8);
    NamedTensors tensors = tests::adapter_factors(kFile, 1);
    change(config, tensors);
    tests::write_adapter(scratch.path, config, tensors);
    try {
      read_adapter(scratch.path, kModules, Json());
      ADD_FAILURE() << "not refused: " << word;
    } catch (const base::Error& e) {
      EXPECT_EQ(e.code(), code) << e.what();
      EXPECT_NE(e.message().find(word), std::string::npos) << e.what();
    }
  };
  const auto member = [](const char* key, Json value) {
    return [key, value](Json& config, NamedTensors&) { config.set(key, value); };
  };
  refusal(ErrorCode::unsupported, "use_dora", member("use_dora", true));
  refusal(ErrorCode::unsupported, "bias", member("bias", "lora_only"));
  refusal(ErrorCode::unsupported, "modules_to_save", member("modules_to_save", Json::array({"lm_head"})));
  refusal(ErrorCode::unsupported, "peft_type", member("peft_type", "IA3"));
  refusal(ErrorCode::unsupported, "init_lora_weights", member("init_lora_weights", "pissa_niter_4"));
  refusal(ErrorCode::unsupported, "changes the base", member("init_lora_weights", "lora_ga"));
  refusal(ErrorCode::unsupported, "layer_replication", member("layer_replication", Json::array({1})));
  refusal(ErrorCode::unsupported, "what_comes_next", member("what_comes_next", 3));
  refusal(ErrorCode::unsupported, ".*_proj", member("rank_pattern", Json::object({{".*_proj", 4}})));
  refusal(ErrorCode::invalid_argument, "r is 0", member("r", 0));
  refusal(ErrorCode::invalid_argument, "has rank 4", member("r", 5));
  refusal(ErrorCode::invalid_argument, "no target module", member("target_modules", Json::array({"q_proj"})));
  refusal(ErrorCode::unsupported, "lora_embedding_A", [](Json&, NamedTensors& t) {
    t.emplace_back("base_model.model.model.embed_tokens.lora_embedding_A", Tensor::zeros(DType::f32, {4, 4}));
  });
  refusal(ErrorCode::unsupported, "lora_magnitude_vector", [](Json&, NamedTensors& t) {
    t.emplace_back("base_model.model.model.layers.0.mlp.down_proj.lora_magnitude_vector",
                   Tensor::zeros(DType::f32, {12}));
  });
  refusal(ErrorCode::unsupported, "lm_head", [](Json&, NamedTensors& t) {
    for (auto& more : tests::adapter_factors({{"lm_head", 12, 30, 4}}, 9)) t.push_back(more);
  });
  refusal(ErrorCode::invalid_argument, "missing", [](Json&, NamedTensors& t) { t.pop_back(); });
  refusal(ErrorCode::invalid_argument, "no factors", [](Json&, NamedTensors& t) { t.clear(); });
  refusal(ErrorCode::invalid_argument, "rows of 20", [](Json&, NamedTensors& t) {
    t[2].second = Tensor::zeros(DType::f32, {4, 21});
  });
  refusal(ErrorCode::invalid_argument, "to rows of 12", [](Json&, NamedTensors& t) {
    t[3].second = Tensor::zeros(DType::f32, {13, 4});
  });
  refusal(ErrorCode::invalid_argument, "a factor is a matrix", [](Json&, NamedTensors& t) {
    t[3].second = Tensor::zeros(DType::f32, {12, 4, 1});
  });
  for (const float none : {NAN, INFINITY, -INFINITY}) {
    refusal(ErrorCode::invalid_argument, "infinities or NaN", [&](Json&, NamedTensors& t) {
      t[1].second = t[1].second.clone();
      t[1].second.mutable_data<float>()[7] = none;
    });
    refusal(ErrorCode::invalid_argument, "infinities or NaN", [&](Json&, NamedTensors& t) {
      Tensor half = Tensor::zeros(DType::bf16, t[0].second.dims());
      std::memcpy(half.mutable_raw() + 6, reinterpret_cast<const char*>(&none) + 2, 2);
      t[0].second = half;
    });
  }
  refusal(ErrorCode::unsupported, "of type i8", [](Json&, NamedTensors& t) {
    t[3].second = Tensor::zeros(DType::i8, {12, 4});
  });
  std::filesystem::remove(scratch.path + "/adapter_model.safetensors");
  try {
    read_adapter(scratch.path, kModules, Json());
    ADD_FAILURE() << "no file, no error";
  } catch (const base::Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::not_found) << e.what();
  }
}

TEST(Adapter, SurvivesMutatedFiles) {
  const Scratch scratch("mutated");
  tests::write_adapter(scratch.path, tests::adapter_config(4, 8), tests::adapter_factors(kFile, 1));
  const std::string names[] = {scratch.path + "/adapter_config.json",
                               scratch.path + "/adapter_model.safetensors"};
  std::mt19937 engine(7);
  for (const std::string& name : names) {
    const std::string whole = base::read_file(name);
    for (int i = 0; i < 300; ++i) {
      std::string text = whole;
      for (int n = 0; n < 1 + i % 3; ++n)
        text[engine() % std::min<size_t>(text.size(), 700)] = char(engine());
      if (i % 5 == 0) text.resize(engine() % text.size());
      std::ofstream(name, std::ios::binary) << text;
      try {
        const Adapter read = read_adapter(scratch.path, kModules, Json());
        for (const AdapterPart& part : read.parts) EXPECT_TRUE(kModules.contains(part.module));
      } catch (const base::Error& e) {
        EXPECT_NE(e.code(), ErrorCode::internal) << e.what();
      }
    }
    std::ofstream(name, std::ios::binary) << whole;
  }
}

}  // namespace
}  // namespace trireme::model::hf
