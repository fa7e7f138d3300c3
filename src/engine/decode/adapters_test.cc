// Adapters of a language model: same results as merged weights, bits that depend only on a text and its
// adapter, pages that are not shared among adapters, and reuse of slots.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "engine/decode/adapter_states.h"
#include "engine/decode/decode_session.h"
#include "engine/decode/generator.h"
#include "engine/decode/test_decoding.h"
#include "model/zoo/gpt2.h"
#include "model/zoo/llama.h"
#include "tests/adapter_files.h"

namespace trireme::engine {
namespace {

using tensor::Tensor;
using Rows = std::vector<float>;
using Loaded = std::shared_ptr<const LoadedAdapter>;

model::Model base_llama() {
  model::zoo::LlamaConfig c;
  c.vocabulary = 97;
  c.positions = 160;
  c.width = 64;
  c.layers = 2;
  c.heads = 4;
  c.kv_heads = 2;
  c.inner = 96;
  c.is_tied = false;
  model::RandomParams params(3);
  return model::zoo::llama(c, params);
}

model::Model base_gpt2() {
  model::zoo::Gpt2Config c = model::zoo::Gpt2Config::nano();
  c.has_bias = true;
  c.width = 64;
  model::RandomParams params(4);
  return model::zoo::gpt2(c, params);
}

std::vector<tests::AdapterModuleFile> llama_modules(int64_t rank) {
  std::vector<tests::AdapterModuleFile> list;
  for (int layer = 0; layer < 2; ++layer) {
    const std::string at = base::concat("model.layers.", layer, ".");
    list.push_back({at + "self_attn.q_proj", 64, 64, rank});
    list.push_back({at + "self_attn.k_proj", 64, 32, rank});
    list.push_back({at + "self_attn.v_proj", 64, 32, rank});
    list.push_back({at + "self_attn.o_proj", 64, 64, rank});
    list.push_back({at + "mlp.gate_proj", 64, 96, rank});
    list.push_back({at + "mlp.up_proj", 64, 96, rank});
    list.push_back({at + "mlp.down_proj", 96, 64, rank});
  }
  return list;
}

struct Scratch {
  std::string path =
      (std::filesystem::temp_directory_path() / ("adapters_test." + std::to_string(getpid()))).string();
  ~Scratch() { std::filesystem::remove_all(path); }
  std::string operator()(const std::string& name, const std::vector<tests::AdapterModuleFile>& modules,
                         uint32_t seed) const {
    tests::write_adapter(path + "/" + name,
                         tests::adapter_config(modules[0].rank, 2.0 * double(modules[0].rank)),
                         tests::adapter_factors(modules, seed));
    return path + "/" + name;
  }
};

/// The model with W replaced by W + 2 B A, [out, in], or by its transpose.
model::Model merged(model::Model model, const std::vector<tests::AdapterModuleFile>& modules, uint32_t seed,
                    bool is_transposed) {
  const model::NamedTensors factors = tests::adapter_factors(modules, seed);
  for (size_t m = 0; m < modules.size(); ++m) {
    const auto [name, in, out, rank] = modules[m];
    const auto a = factors[2 * m].second.data<float>(), b = factors[2 * m + 1].second.data<float>();
    size_t found = 0;
    for (size_t i = 0; i < model.graph.values().size(); ++i) {
      ir::Value& v = model.graph.value(ir::ValueId(static_cast<uint32_t>(i)));
      if (v.kind != ir::ValueKind::param || v.name != name + ".weight") continue;
      ++found;
      v.data = v.data.clone();
      auto w = v.data.mutable_data<float>();
      for (int64_t n = 0; n < out; ++n) {
        for (int64_t k = 0; k < in; ++k) {
          double sum = 0;
          for (int64_t r = 0; r < rank; ++r)
            sum += double{b[static_cast<size_t>(n * rank + r)]} * double{a[static_cast<size_t>(r * in + k)]};
          w[static_cast<size_t>(is_transposed ? k * out + n : n * in + k)] += static_cast<float>(2 * sum);
        }
      }
    }
    EXPECT_EQ(found, 1u) << name;
  }
  return model;
}

/// Logits after the last of the tokens, fed in pieces of the given sizes (the last size repeats).
Rows last_logits(DecodeSession& session, SequenceId id, std::span<const int64_t> tokens,
                 const std::vector<size_t>& sizes) {
  Rows last = feed(session, id, tokens, sizes).back();
  session.close(id);
  return last;
}

struct Prepared {
  std::shared_ptr<DecodeModel> model;
  std::shared_ptr<AdapterSlots> slots;
  DecodeOptions options;

  Prepared(const model::Model& from, DecodeOptions o) : options(std::move(o)) {
    model = std::make_shared<DecodeModel>(from.graph, options);
    slots = AdapterSlots::make(model->form().adapters, from.config);
  }
};

DecodeOptions with_room(int64_t adapters = 4, int64_t rank = 8) {
  return {.threads = 2, .max_adapters = adapters, .max_adapter_rank = rank};
}

TEST(Adapters, AreAsMergedWeights) {
  const Scratch scratch;
  const std::vector<tests::AdapterModuleFile> gpt2{{"transformer.h.1.attn.c_attn", 64, 192, 5},
                                                   {"transformer.h.0.mlp.c_fc", 64, 256, 5},
                                                   {"transformer.h.3.mlp.c_proj", 256, 64, 5}};
  const auto tokens = random_tokens(40, 60, 1);
  for (const bool is_llama : {true, false}) {
    const model::Model base = is_llama ? base_llama() : base_gpt2();
    const auto modules = is_llama ? llama_modules(5) : gpt2;
    const std::string directory = scratch(is_llama ? "llama" : "gpt2", modules, 11);
    for (const auto bits : {passes::WeightBits::f32, passes::WeightBits::q8_0, passes::WeightBits::int4}) {
      DecodeOptions options = with_room();
      options.strategy.weights.weights = bits;
      const Prepared p(base, options);
      DecodeSession session(p.model, options);
      const Loaded adapter = p.slots->load(directory);
      const Rows got = last_logits(session, session.open(adapter.get()), tokens, {17, 1, 22});
      const Rows plain = last_logits(session, session.open(), tokens, {17, 1, 22});
      EXPECT_GT(difference(got, plain), 0.05) << base.name;
      if (bits != passes::WeightBits::f32) continue;  // a merged weight would be quantized differently
      DecodeSession whole(std::make_shared<DecodeModel>(merged(base, modules, 11, !is_llama).graph),
                          {.threads = 2});
      EXPECT_LT(difference(got, last_logits(whole, whole.open(), tokens, {40})), 2e-4) << base.name;
      // The same model loaded without support for adapters.
      DecodeSession alone(std::make_shared<DecodeModel>(base.graph), {.threads = 2});
      EXPECT_LT(difference(plain, last_logits(alone, alone.open(), tokens, {40})), 1e-5) << base.name;
    }
  }
}

TEST(Adapters, StoredWeightsKeepWhatTheAdapterAdds) {
  // An adapter adds the same amounts to stored weights and to f32 weights, so both forms differ only by the
  // rounding of the base weights, with and without the adapter.
  const Scratch scratch;
  const model::Model base = base_llama();
  const std::string directory = scratch("a", llama_modules(8), 21);
  const auto tokens = random_tokens(30, 60, 5);
  const auto logits = [&](passes::WeightBits bits, passes::Precision precision, bool adapts) {
    DecodeOptions options = with_room();
    options.strategy.weights.weights = bits;
    options.strategy.precision.compute = precision;
    const Prepared p(base, options);
    DecodeSession session(p.model, options);
    const Loaded adapter = p.slots->load(directory);
    return last_logits(session, session.open(adapts ? adapter.get() : nullptr), tokens, {30});
  };
  const auto f32 = passes::Precision::f32;
  const double effect =
      difference(logits(passes::WeightBits::f32, f32, true), logits(passes::WeightBits::f32, f32, false));
  for (const auto& [bits, precision] :
       {std::pair{passes::WeightBits::int8, f32}, std::pair{passes::WeightBits::q8_0, f32},
        std::pair{passes::WeightBits::f32, passes::Precision::bf16}}) {
    const double with = difference(logits(bits, precision, true), logits(passes::WeightBits::f32, f32, true));
    EXPECT_LT(with, effect / 4);
    EXPECT_GT(difference(logits(bits, precision, true), logits(bits, precision, false)), effect / 2);
  }
}

TEST(Adapters, BitsDependOnNothingButTheTextAndItsAdapter) {
  const Scratch scratch;
  const model::Model base = base_llama();
  const Prepared p(base, with_room());
  std::vector<Loaded> adapters{nullptr};
  for (uint32_t i = 0; i < 3; ++i)
    adapters.push_back(
        p.slots->load(scratch(std::to_string(i), llama_modules(4 + 2 * int64_t{i}), 30 + 50 * i)));
  // Rewriting an adapter's file does not affect adapters that are loaded.
  std::filesystem::resize_file(scratch.path + "/1/adapter_model.safetensors", 0);
  const auto tokens = random_tokens(70, 60, 2);
  std::vector<Rows> want;
  for (const Loaded& adapter : adapters) {
    DecodeOptions options = p.options;
    options.threads = 1;
    DecodeSession session(p.model, options);
    want.push_back(last_logits(session, session.open(adapter.get()), tokens, {1}));
    for (size_t i = 0; i + 1 < want.size(); ++i) EXPECT_GT(difference(want[i], want.back()), 0.01);
  }
  for (uint32_t round = 0; round < 6; ++round) {
    std::mt19937 engine(round);
    DecodeOptions options = p.options;
    options.threads = 1 + static_cast<int>(round % 3);
    DecodeSession session(p.model, options);
    // Twelve texts with random adapters and the same tokens, cut into pieces at random.
    struct Text {
      SequenceId id;
      size_t adapter, at = 0;
    };
    std::vector<Text> texts;
    for (int i = 0; i < 12; ++i) {
      const size_t which = engine() % adapters.size();
      texts.push_back({session.open(adapters[which].get()), which});
    }
    size_t done = 0;
    while (done < texts.size()) {
      std::vector<DecodePiece> pieces;
      std::vector<size_t> rows;
      for (size_t i = 0; i < texts.size(); ++i) {
        const size_t n = std::min<size_t>(engine() % 9, tokens.size() - texts[i].at);
        if (n == 0) continue;
        pieces.push_back({texts[i].id, std::span(tokens).subspan(texts[i].at, n)});
        texts[i].at += n;
        rows.push_back(i);
      }
      if (pieces.empty()) continue;
      const auto logits = session.step(pieces);
      const auto width = static_cast<size_t>(session.vocabulary());
      for (size_t r = 0; r < rows.size(); ++r) {
        const Text& text = texts[rows[r]];
        if (text.at < tokens.size()) continue;
        ++done;
        const Rows got(logits.begin() + static_cast<ptrdiff_t>(r * width),
                       logits.begin() + static_cast<ptrdiff_t>((r + 1) * width));
        ASSERT_EQ(got, want[text.adapter]) << "adapter " << text.adapter << " in round " << round;
      }
    }
  }
}

TEST(Adapters, KnowTheirOwnBeginningsOnly) {
  const Scratch scratch;
  const Prepared p(base_llama(), with_room(1));
  DecodeSession session(p.model, p.options);
  const auto tokens = random_tokens(40, 60, 3);
  const auto known = [&](const LoadedAdapter* adapter) { return session.look(tokens, adapter).tokens; };
  const auto run = [&](const LoadedAdapter* adapter) {
    const SequenceId id = session.open(std::span<const int64_t>(tokens), adapter);
    const auto begin = static_cast<size_t>(session.length(id));
    const DecodePiece piece{id, std::span(tokens).subspan(begin)};
    const auto row = session.step({&piece, 1});
    const Rows logits(row.begin(), row.end());
    session.keep(id, tokens);
    session.close(id);
    return logits;
  };
  const Rows plain = run(nullptr);
  EXPECT_EQ(known(nullptr), 32);
  Loaded first = p.slots->load(scratch("first", llama_modules(4), 5));
  EXPECT_EQ(known(first.get()), 0);
  const Rows with = run(first.get());
  EXPECT_GT(difference(plain, with), 0.01);
  EXPECT_EQ(known(first.get()), 32);
  EXPECT_EQ(run(first.get()), with);
  EXPECT_EQ(run(nullptr), plain);
  // The next adapter in a slot finds no data of the previous one.
  EXPECT_THROW(p.slots->load(scratch.path + "/first"), base::Error);
  first.reset();
  const Loaded second = p.slots->load(scratch("second", llama_modules(4), 77));
  EXPECT_EQ(second->slot(), 0);
  EXPECT_EQ(known(second.get()), 0);
  const Rows other = run(second.get());
  EXPECT_GT(difference(other, with), 0.01);
  EXPECT_EQ(run(second.get()), other);
  EXPECT_EQ(run(nullptr), plain);
}

TEST(Adapters, ATextHoldsItsAdapterUntilItsEnd) {
  const Scratch scratch;
  const Prepared p(base_llama(), with_room(1));
  DecodeSession session(p.model, p.options);
  Generator generator(session);
  Loaded adapter = p.slots->load(scratch("only", llama_modules(4), 5));
  GenerateRequest request{.prompt = random_tokens(5, 60, 1), .max_tokens = 3, .sampling = {.temperature = 0}};
  request.adapter = std::move(adapter);
  generator.start(0, std::move(request));
  EXPECT_THROW(p.slots->load(scratch.path + "/only"), base::Error);
  GenerateRequest again = generator.put_back(0);
  ASSERT_NE(again.adapter, nullptr);
  generator.start(0, std::move(again));
  std::vector<GenerateEvent> events;
  for (std::vector<int64_t> tokens{5}; generator.size() > 0; tokens = {1}) {
    ASSERT_TRUE(generator.launch(tokens));
    generator.collect(events);
  }
  EXPECT_EQ(events.size(), 3u);
  EXPECT_NO_THROW(p.slots->load(scratch.path + "/only"));
}

// Finite factors whose products are no numbers: the text that has chosen them fails, and no other.
TEST(Adapters, NumbersThatOverflowFailTheirOwnTextAlone) {
  const Scratch scratch;
  const Prepared p(base_llama(), with_room(1));
  DecodeSession session(p.model, p.options);
  model::NamedTensors huge = tests::adapter_factors(llama_modules(4), 5);
  for (auto& [name, t] : huge) {
    t = t.clone();
    for (float& v : t.mutable_data<float>()) v *= 1e30f;
  }
  tests::write_adapter(scratch.path + "/huge", tests::adapter_config(4, 8), huge);
  const Loaded adapter = p.slots->load(scratch.path + "/huge");
  const auto tokens_beside = [&](const Loaded& other) {
    Generator generator(session);
    for (int64_t i = 0; i < 2; ++i) {
      GenerateRequest request{
          .prompt = random_tokens(5, 60, i), .max_tokens = 6, .sampling = {.temperature = 0}};
      if (i == 1) request.adapter = other;
      generator.start(i, std::move(request));
    }
    std::vector<GenerateEvent> events;
    for (std::vector<int64_t> take{5, 5}; generator.size() > 0;
         take.assign(static_cast<size_t>(generator.size()), 1)) {
      EXPECT_TRUE(generator.launch(take));
      generator.collect(events);
    }
    return events;
  };
  std::vector<int64_t> want, got;
  for (const GenerateEvent& e : tokens_beside(nullptr)) {
    if (e.request == 0) want.push_back(e.token);
  }
  size_t failed = 0;
  for (const GenerateEvent& e : tokens_beside(adapter)) {
    if (e.request == 0) got.push_back(e.token);
    failed += e.request == 1 && e.finish == FinishReason::failed && e.error != nullptr;
  }
  EXPECT_EQ(want.size(), 6u);
  EXPECT_EQ(got, want);
  EXPECT_EQ(failed, 1u);
}

/// How many steps of the program for one token talk to other ranks.
int64_t collectives(DecodeSession& session) {
  const compile::Program& program = session.prepare({1, 1});
  return std::count_if(program.steps.begin(), program.steps.end(),
                       [](const compile::Step& step) { return !step.axes.empty(); });
}

TEST(Adapters, OfSeveralRanksAreThoseOfOne) {
  // Two adapters and the model alone in the same steps, of which one takes the slot of a third; each rank has
  // its parts of the factors.
  const Scratch scratch;
  const std::vector<tests::AdapterModuleFile> of_gpt2{{"transformer.h.0.attn.c_attn", 64, 192, 5},
                                                      {"transformer.h.1.attn.c_proj", 64, 64, 5},
                                                      {"transformer.h.2.mlp.c_fc", 64, 256, 5},
                                                      {"transformer.h.3.mlp.c_proj", 256, 64, 5}};
  const auto tokens = random_tokens(23, 60, 9);
  for (const bool is_llama : {true, false}) {
    const model::Model base = is_llama ? base_llama() : base_gpt2();
    const auto modules = is_llama ? llama_modules(6) : of_gpt2;
    const std::string names = is_llama ? "llama" : "gpt2";
    for (uint32_t i = 0; i < 3; ++i) scratch(names + std::to_string(i), modules, 50 + 40 * i);
    const auto logits = [&](int tp, int pp) {
      DecodeOptions options = with_room(2);
      options.strategy = {.tp = tp, .pp = pp};
      const Prepared p(base, options);
      DecodeSession session(p.model, options);
      const auto load = [&](int i) { return p.slots->load(scratch.path + "/" + names + std::to_string(i)); };
      Loaded gone = load(0);
      Rows all = last_logits(session, session.open(gone.get()), tokens, {23});
      gone.reset();
      const Loaded first = load(1), second = load(2);
      const SequenceId ids[] = {session.open(), session.open(first.get()), session.open(second.get())};
      std::vector<DecodePiece> pieces;
      for (const SequenceId id : ids) pieces.push_back({id, tokens});
      const auto rows = session.step(pieces);
      all.insert(all.end(), rows.begin(), rows.end());
      if (is_llama && tp > 1 && pp == 1) {
        DecodeOptions none = options;
        none.max_adapters = 0;
        DecodeSession alone(std::make_shared<DecodeModel>(base.graph, none), none);
        EXPECT_EQ(collectives(session), collectives(alone)) << "what adapters add is summed with products";
        EXPECT_GT(collectives(alone), 0);
      }
      return all;
    };
    const Rows one = logits(1, 1), split = logits(2, 1);
    const size_t width = one.size() / 4;
    for (size_t row = 1; row < 4; ++row) {
      const Rows before(one.begin() + static_cast<ptrdiff_t>((row - 1) * width),
                        one.begin() + static_cast<ptrdiff_t>(row * width));
      const Rows own(one.begin() + static_cast<ptrdiff_t>(row * width),
                     one.begin() + static_cast<ptrdiff_t>((row + 1) * width));
      EXPECT_GT(difference(before, own), 0.02) << names;
    }
    EXPECT_EQ(logits(1, 2), one) << names;
    EXPECT_LT(difference(split, one), 1e-4) << names;
    EXPECT_EQ(logits(2, 2), split) << names;
    if (is_llama) {
      EXPECT_LT(difference(logits(4, 1), one), 1e-4);  // two ranks share a key head
    }
  }
}

TEST(Adapters, RanksDivideTheirRoom) {
  const model::Model base = base_llama();
  const auto bytes = [&](int tp, int pp) {
    DecodeOptions options = with_room();
    options.strategy = {.tp = tp, .pp = pp};
    const DecodeModel model(base.graph, options);
    std::vector<int64_t> list;
    for (int rank = 0; rank < tp * pp; ++rank) list.push_back(adapter_room_bytes(model, rank));
    return list;
  };
  const int64_t one = bytes(1, 1)[0];
  // Of 4 slots of rank 8, per layer: inputs 64 six times and 96, results 64, 32, 32, 64, 96, 96, 64.
  EXPECT_GE(one, 2 * 4 * 8 * 4 * (6 * 64 + 96 + 448));
  for (const int64_t stage : bytes(1, 2)) EXPECT_EQ(stage, one / 2);
  // Results of q, k, v, gate and up, and inputs of o and down, are halves.
  const int64_t halves = 2 * 4 * 8 * 4 * (64 + 32 + 32 + 96 + 96 + 64 + 96) / 2;
  for (const int64_t rank : bytes(2, 1)) EXPECT_EQ(rank, one - halves);
}

TEST(Adapters, RefuseWhatDoesNotFit) {
  const Scratch scratch;
  const model::Model base = base_llama();
  const std::string directory = scratch("wide", llama_modules(9), 5);
  const auto refusal = [](const auto& act) -> std::string {
    try {
      act();
    } catch (const base::Error& e) {
      return e.what();
    }
    return "";
  };
  const Prepared p(base, with_room());
  EXPECT_NE(refusal([&] { p.slots->load(directory); }).find("--max-adapter-rank is 8"), std::string::npos);
  const Prepared none(base, {.threads = 1});
  EXPECT_NE(refusal([&] { none.slots->load(directory); }).find("--max-adapters"), std::string::npos);
  DecodeOptions gpu = with_room();
  gpu.device = "cuda";
  EXPECT_NE(refusal([&] { DecodeModel(base.graph, gpu); }).find("cuda"), std::string::npos);
}

}  // namespace
}  // namespace trireme::engine
