// Tests forms of decoders: what is written reads back, weight for weight; a form refuses what it does not
// know, by name; rotary positions and windows follow config.json. tests/decoder_forms.py compares the forms
// with Transformers.
#include "model/hf/forms/forms.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "base/files/scratch.h"
#include "model/hf/directory.h"
#include "model/hf/forms/test_configs.h"
#include "model/interpret.h"
#include "model/weight_summary.h"

namespace trireme::model::hf {
namespace {

using base::Json;
using tensor::Tensor;

Form form_of(const Json& config) { return read_form(*find_form(config), config); }

std::string message_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const base::Error& e) {
    return std::string(base::to_string(e.code())) + " " + e.message();
  }
  return "no error";
}

TEST(Forms, WhatIsWrittenIsReadAgain) {
  const auto scratch = base::make_scratch("trireme-forms");
  for (const Json& config : form_configs()) {
    const std::string type = config.at("model_type").as_string(), directory = *scratch + "/" + type;
    RandomParams params(7);
    Model model = zoo::decoder(form_of(config).decoder, params);
    model.config = config;
    save_directory(model, directory);
    const Model again = load_directory(directory);
    size_t count = 0;
    for (const ir::Value& v : model.graph.values()) {
      if (v.kind != ir::ValueKind::param) continue;
      const auto same = std::find_if(again.graph.values().begin(), again.graph.values().end(),
                                     [&](const ir::Value& w) { return w.name == v.name; });
      ASSERT_NE(same, again.graph.values().end()) << type << " " << v.name;
      EXPECT_TRUE(same->data.same_as(v.data)) << type << " " << v.name;
      ++count;
    }
    EXPECT_GT(count, 10u);
    const Tensor ids = Tensor::from<int64_t>({1, 9}, {3, 1, 4, 1, 5, 9, 2, 6, 5});
    const Tensor logits = interpret(model.graph, {ids})[0];
    EXPECT_EQ(logits.dims(), (tensor::Dims{1, 9, 50})) << type;
    EXPECT_TRUE(interpret(again.graph, {ids})[0].same_as(logits)) << type;
  }
}

TEST(Forms, ALaterTokenChangesNoEarlierLogits) {
  for (const Json& config : form_configs()) {
    RandomParams params(3);
    const Model model = zoo::decoder(form_of(config).decoder, params);
    const Tensor a = interpret(model.graph, {Tensor::from<int64_t>({1, 6}, {3, 1, 4, 1, 5, 9})})[0];
    const Tensor b = interpret(model.graph, {Tensor::from<int64_t>({1, 6}, {3, 1, 4, 1, 5, 8})})[0];
    const auto x = a.data<float>(), y = b.data<float>();
    EXPECT_TRUE(std::equal(x.begin(), x.begin() + 250, y.begin())) << model.name;
    EXPECT_FALSE(std::equal(x.begin() + 250, x.end(), y.begin() + 250)) << model.name;
  }
}

TEST(Forms, ATokenReadsTheExpertsThatAreChosenForIt) {
  for (const Json& config : form_configs()) {
    RandomParams params(3);
    const Form form = form_of(config);
    const zoo::ExpertSpec& experts = form.decoder.experts;
    const Model model = zoo::decoder(form.decoder, params);
    const std::string text = describe_stored_weights(model.graph);
    EXPECT_EQ(text.empty(), experts.count == 0) << model.name;
    if (experts.count == 0) continue;
    double bytes = 0;
    for (const ir::Value& v : model.graph.values()) {
      if (v.kind != ir::ValueKind::param || v.data.rank() < 2) continue;
      const auto own = static_cast<double>(v.data.bytes());
      const bool is_expert = v.data.rank() == 3 || v.name.ends_with("_proj.bias");
      const bool is_table = v.name.find("embed_tokens") != std::string::npos && !form.decoder.is_tied;
      bytes += is_expert  ? own * static_cast<double>(experts.chosen) / static_cast<double>(experts.count)
               : is_table ? own / static_cast<double>(v.data.dims()[0])
                          : own;
    }
    char want[64];
    std::snprintf(want, sizeof want, "# a token reads %.3f MB of weights", bytes / 1e6);
    EXPECT_NE(text.find(want), std::string::npos) << model.name << ": " << want << "\n" << text;
  }
}

TEST(Forms, RefuseWhatTheyDoNotKnow) {
  for (Json config : form_configs()) {
    EXPECT_EQ(message_of([&] { form_of(config); }), "no error");
    config.set("a_new_gate", Json(nullptr));
    config.set("another", false);
    config.set("_private", 3);
    EXPECT_EQ(message_of([&] { form_of(config); }), "no error");
    config.set("a_new_gate", 0.5);
    EXPECT_EQ(message_of([&] { form_of(config); }).find("unsupported config.json: a_new_gate"), 0u);
  }
  const auto llama = [](const char* key, Json value) {
    Json config = form_sizes("llama");
    config.set(key, std::move(value));
    return message_of([&] { form_of(config); });
  };
  EXPECT_NE(llama("quantization_config", Json::object({{"bits", 4}})).find("quantization_config"),
            std::string::npos);
  EXPECT_NE(llama("rope_scaling", Json::object({{"type", "spiral"}})).find("'spiral'"), std::string::npos);
  EXPECT_NE(llama("rope_scaling", Json::object({{"type", "linear"}})).find("factor"), std::string::npos);
  EXPECT_NE(llama("rope_scaling", Json::object({{"type", "linear"}, {"factor", 2}, {"mrope_section", 3}}))
                .find("rope_scaling.mrope_section"),
            std::string::npos);
  EXPECT_NE(llama("num_hidden_layers", 2000000000).find("num_hidden_layers"), std::string::npos);
  EXPECT_NE(llama("num_attention_heads", 5).find("5 heads"), std::string::npos);
  EXPECT_NE(llama("hidden_size", -1).find("hidden_size is -1"), std::string::npos);
  EXPECT_NE(llama("hidden_size", nullptr).find("no hidden_size"), std::string::npos);
}

TEST(Forms, RotaryPositionsInAllSpellings) {
  const auto rotary = [](std::vector<std::pair<const char*, Json>> members) {
    Json config = form_sizes("llama");
    for (auto& [key, value] : members) config.set(key, std::move(value));
    return form_of(config).decoder;
  };
  EXPECT_EQ(rotary({{"rope_theta", 5e5}}).rotary[0].theta, 5e5);
  EXPECT_EQ(rotary({{"rope_parameters", Json::object({{"rope_theta", 5e5}})}}).rotary[0].theta, 5e5);
  for (const char* name : {"rope_scaling", "rope_parameters"}) {
    for (const char* type : {"type", "rope_type"}) {
      const auto d = rotary({{name, Json::object({{type, "linear"}, {"factor", 4}})}});
      EXPECT_EQ(d.rotary[0].kind, zoo::RotaryKind::linear);
      EXPECT_EQ(zoo::rotary_frequencies(d.rotary[0], 8)[0], 0.25);
    }
  }
  const auto yarn =
      rotary({{"rope_scaling",
               Json::object({{"type", "yarn"}, {"factor", 4}, {"original_max_position_embeddings", 16}})}});
  const auto f = zoo::rotary_frequencies(yarn.rotary[0], 8);
  EXPECT_EQ(f[0], 1);                                 // many turns: kept
  EXPECT_NEAR(f[3], std::pow(1e4, -0.75) / 4, 1e-9);  // less than one: stretched
  EXPECT_NEAR(yarn.rotary[0].gain, 0.1 * std::log(4) + 1, 1e-12);
  const Json factors = Json::array({1, 2, 3, 4});
  const auto longrope =
      rotary({{"rope_scaling",
               Json::object({{"type", "longrope"}, {"short_factor", factors}, {"long_factor", factors}})},
              {"original_max_position_embeddings", 16}});
  EXPECT_EQ(longrope.positions, 16);
  EXPECT_NEAR(longrope.rotary[0].gain, std::sqrt(1 + std::log(4) / std::log(16)), 1e-12);
}

TEST(Forms, WindowsByLayer) {
  Json config = form_sizes("qwen2");
  config.set("num_hidden_layers", 4);
  config.set("sliding_window", 7);
  config.set("max_window_layers", 2);
  const auto windows = [&] {
    std::vector<int64_t> list;
    for (const zoo::DecoderLayer& layer : form_of(config).decoder.layers) list.push_back(layer.window);
    return list;
  };
  EXPECT_EQ(windows(), (std::vector<int64_t>{0, 0, 0, 0}));
  config.set("use_sliding_window", true);
  EXPECT_EQ(windows(), (std::vector<int64_t>{0, 0, 7, 7}));
  config.set("layer_types",
             Json::array({"sliding_attention", "full_attention", "full_attention", "sliding_attention"}));
  EXPECT_EQ(windows(), (std::vector<int64_t>{7, 0, 0, 7}));
  config.set("layer_types", Json::array({"sliding_attention"}));
  EXPECT_NE(message_of([&] { form_of(config); }).find("layer_types names 1 of 4"), std::string::npos);
}

}  // namespace
}  // namespace trireme::model::hf
