// Adapters over GGUF files: of every architecture that is written, a file and the directory it was made of
// answer alike with the same adapter.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <set>

#include "base/files/scratch.h"
#include "engine/decode/adapter_slots.h"
#include "engine/decode/decode_session.h"
#include "engine/decode/test_decoding.h"
#include "model/gguf/quantize.h"
#include "model/hf/directory.h"
#include "model/hf/forms/test_configs.h"
#include "model/load/load.h"
#include "tests/adapter_files.h"

namespace trireme::engine {
namespace {

using base::Json;
using tests::AdapterModuleFile;

/// The modules that PEFT would name, of those that take adapters in the network of a directory.
std::vector<AdapterModuleFile> checkpoint_modules(const passes::AdapterRoom& room,
                                                  const std::vector<model::hf::Joined>& joined,
                                                  int64_t rank) {
  std::vector<AdapterModuleFile> list;
  for (const passes::AdapterModule& m : room.modules) {
    // Of mixtures over files attention alone takes adapters.
    if (m.name.find("expert") != std::string::npos || m.name.ends_with(".gate") ||
        m.name.ends_with(".router"))
      continue;
    AdapterModuleFile file{m.name, m.in, m.out, rank};
    for (const model::hf::Joined& j : joined) {
      for (size_t i = 0; i < j.parts.size(); ++i) {
        if (!m.name.ends_with("." + j.parts[i])) continue;
        file.name = m.name.substr(0, m.name.size() - j.parts[i].size()) + j.name;
        file.out = i > 0 ? 0 : std::accumulate(j.rows.begin(), j.rows.end(), int64_t{0});
      }
    }
    if (file.out > 0) list.push_back(file);
  }
  return list;
}

/// Logits behind `tokens`, of the model alone and with the adapter.
struct ComparedRows {
  std::vector<float> alone, adapted;
};

ComparedRows rows_of(const model::Model& model, const std::string& adapter, std::span<const int64_t> tokens,
                     DecodeOptions options = {}) {
  options.threads = 2;
  options.max_adapters = 2;
  const auto prepared = std::make_shared<DecodeModel>(model.graph, options, model.files);
  const auto slots = AdapterSlots::make(prepared->form().adapters, model.config);
  const auto loaded = slots->load(adapter);
  DecodeSession session(prepared, options);
  const DecodePiece pieces[] = {{session.open(), tokens}, {session.open(loaded.get()), tokens}};
  const auto logits = session.step(pieces);
  const auto width = static_cast<ptrdiff_t>(session.vocabulary());
  return {{logits.begin(), logits.begin() + width}, {logits.begin() + width, logits.begin() + 2 * width}};
}

const std::vector<int64_t> kTokens{3, 1, 4, 15, 9, 26, 5, 35, 8, 9, 7, 9};

/// A directory of random weights, an adapter for all its products, and the file that is made of the
/// directory.
struct Files {
  std::shared_ptr<const std::string> scratch = base::make_scratch("trireme-gguf-adapters");
  std::string directory = *scratch + "/model", adapter = *scratch + "/adapter",
              file = *scratch + "/model.gguf";

  explicit Files(const Json& config, const std::string& format = "f32") {
    const model::hf::Form form = model::hf::read_form(*model::hf::find_form(config), config);
    model::RandomParams params(5);
    model::Model model = model::zoo::decoder(form.decoder, params);
    model.config = config;
    model::hf::save_directory(model, directory);
    base::ThreadPool pool(2);
    model::gguf::write_quantized(model::gguf::huggingface_source(directory), format, file, pool);
    const DecodeModel prepared(model.graph, {.max_adapters = 1});
    const auto modules = checkpoint_modules(prepared.form().adapters, form.weights.joined, 4);
    tests::write_adapter(adapter, tests::adapter_config(4, 8), tests::adapter_factors(modules, 31, 0.2f));
  }
};

TEST(GgufAdapters, AnswerAsTheDirectoryThatTheFileWasMadeOf) {
  std::set<std::string> known;
  for (const Json& config : model::hf::form_configs({.width = 64, .inner = 96})) {
    const std::string type = config.at("model_type").as_string();
    try {
      const Files files(config);
      const model::Model model = model::load_model(files.file);
      known.insert(model.config.at("gguf_architecture").as_string());
      const ComparedRows want = rows_of(model::load_model(files.directory), files.adapter, kTokens);
      const ComparedRows got = rows_of(model, files.adapter, kTokens);
      EXPECT_LT(difference(got.alone, want.alone), 2e-5) << type;
      EXPECT_LT(difference(got.adapted, want.adapted), 2e-5) << type;
      EXPECT_GT(difference(want.alone, want.adapted), 1e-2) << type;
    } catch (const base::Error& e) {
      EXPECT_EQ(e.code(), base::ErrorCode::unsupported) << type << ": " << e.message();
      EXPECT_NE(e.message().find("as GGUF"), std::string::npos) << type << ": " << e.message();
    }
  }
  for (const char* name : {"llama", "granite", "phi3", "qwen2", "qwen3moe", "gemma2", "gemma3", "command-r",
                           "phi2", "starcoder2", "stablelm", "olmo2", "qwen2moe"})
    EXPECT_TRUE(known.contains(name)) << name;
}

Json llama_config() {
  Json config = model::hf::form_sizes("llama", {.width = 64, .inner = 96});
  config.set("num_key_value_heads", 2);
  return config;
}

TEST(GgufAdapters, StandBesideBlocks) {
  const Files files(llama_config(), "q8_0");
  const ComparedRows want = rows_of(model::load_model(files.directory), files.adapter, kTokens);
  const ComparedRows got = rows_of(model::load_model(files.file), files.adapter, kTokens);
  const double rounding = difference(got.alone, want.alone);
  EXPECT_GT(rounding, 0);
  EXPECT_LT(difference(got.adapted, want.adapted), difference(want.alone, want.adapted) / 4);
}

TEST(GgufAdapters, OfSeveralRanks) {
  const Files files(llama_config());
  const model::Model model = model::load_model(files.file);
  const ComparedRows one = rows_of(model, files.adapter, kTokens);
  for (const auto& [tp, pp] : {std::pair{2, 1}, std::pair{1, 2}, std::pair{2, 2}}) {
    DecodeOptions options;
    options.strategy = {.tp = tp, .pp = pp};
    const ComparedRows got = rows_of(model, files.adapter, kTokens, options);
    if (tp == 1) {
      EXPECT_EQ(got.adapted, one.adapted);
    }
    EXPECT_LT(difference(got.adapted, one.adapted), 1e-4) << "tp " << tp << ", pp " << pp;
  }
}

TEST(GgufAdapters, AreRefusedByTheNamesOfTheCheckpoint) {
  const Files files(llama_config());
  const model::Model model = model::load_model(files.file);
  const auto refusal = [&](const AdapterModuleFile& module) -> std::string {
    tests::write_adapter(files.adapter, tests::adapter_config(4, 8), tests::adapter_factors({module}, 1));
    try {
      rows_of(model, files.adapter, kTokens);
    } catch (const base::Error& e) {
      return e.message();
    }
    return "";
  };
  const std::string query = "model.layers.1.self_attn.q_proj";
  EXPECT_NE(refusal({query, 64, 60, 4}).find("of '" + query + "'"), std::string::npos);
  EXPECT_NE(refusal({"blk.0.attn_q", 64, 64, 4}).find("no product 'blk.0.attn_q'"), std::string::npos);
  EXPECT_NE(refusal({"model.layers.7.self_attn.q_proj", 64, 64, 4}).find("layers.7"), std::string::npos);
  EXPECT_EQ(refusal({query, 64, 64, 4}), "");
}

}  // namespace
}  // namespace trireme::engine
