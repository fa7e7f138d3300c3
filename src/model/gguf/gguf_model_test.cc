// Tests models in GGUF files: weights stay in the mapped file, blocks stay blocks, damage is refused, and a
// file written from another one is the same model.
#include "model/gguf/gguf_model.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <iterator>
#include <random>

#include "base/error.h"
#include "base/files/scratch.h"
#include "model/gguf/quantize.h"
#include "tensor/gguf/gguf_writer.h"

namespace trireme::model::gguf {
namespace {

using tensor::Dims;
using tensor::DType;
using tensor::GgufFile;
using tensor::GgufWriter;

constexpr int64_t kWidth = 32, kInner = 64, kWords = 40;

struct Planned {
  std::string name;
  Dims dims;
};

std::vector<Planned> llama_tensors() {
  std::vector<Planned> list{{"token_embd.weight", {kWords, kWidth}}, {"output_norm.weight", {kWidth}}};
  for (const char* layer : {"blk.0.", "blk.1."}) {
    const auto add = [&](const char* name, Dims dims) {
      list.push_back({std::string(layer) + name, std::move(dims)});
    };
    add("attn_norm.weight", {kWidth});
    add("attn_q.weight", {kWidth, kWidth});
    add("attn_k.weight", {kWidth / 2, kWidth});
    add("attn_v.weight", {kWidth / 2, kWidth});
    add("attn_output.weight", {kWidth, kWidth});
    add("ffn_norm.weight", {kWidth});
    add("ffn_gate.weight", {kInner, kWidth});
    add("ffn_up.weight", {kInner, kWidth});
    add("ffn_down.weight", {kWidth, kInner});
  }
  return list;
}

GgufWriter llama_metadata() {
  GgufWriter w;
  w.set_text("general.architecture", "llama");
  w.set_text("general.name", "small");
  w.set_integer("llama.context_length", 64);
  w.set_integer("llama.embedding_length", kWidth);
  w.set_integer("llama.block_count", 2);
  w.set_integer("llama.feed_forward_length", kInner);
  w.set_integer("llama.attention.head_count", 4);
  w.set_integer("llama.attention.head_count_kv", 2);
  w.set_number("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  w.set_integer("tokenizer.ggml.eos_token_id", 2);
  return w;
}

/// Writes a file whose matrices have one type and arbitrary content.
std::string write_file(GgufWriter w, const std::string& path, const std::string& type) {
  std::vector<size_t> bytes;
  for (const Planned& t : llama_tensors()) {
    const tensor::GgufType& kind = tensor::gguf_type(t.dims.size() == 2 ? type : "f32");
    const int64_t before = w.tensor_bytes();
    w.add(t.name, t.dims, kind);
    bytes.push_back(static_cast<size_t>(w.tensor_bytes() - before));
  }
  w.write(path, [&](size_t i) {
    std::string content(bytes[i], '\0');
    std::mt19937 random(static_cast<uint32_t>(i));
    if (llama_tensors()[i].dims.size() == 1 || type == "f32") {
      for (size_t at = 0; at < content.size(); at += 4) {
        const float value = static_cast<float>(random() % 1000) / 500 - 1;
        std::memcpy(content.data() + at, &value, 4);
      }
    } else {
      for (char& c : content) c = static_cast<char>(random() % 60);
    }
    return content;
  });
  return path;
}

std::string message_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const base::Error& e) {
    return std::string(base::to_string(e.code())) + " " + e.message();
  }
  return "no error";
}

class GgufModelTest : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return *scratch_ + "/" + name; }
  std::shared_ptr<const std::string> scratch_ = base::make_scratch("trireme-gguf");
};

TEST_F(GgufModelTest, WeightsLieInTheFile) {
  for (const std::string type : {"f32", "q8_0", "q4_0"}) {
    const std::string file = write_file(llama_metadata(), path(type + ".gguf"), type);
    const GgufFile open = GgufFile::open(file);
    const Model model = load_gguf(open);
    size_t blocks = 0, params = 0;
    for (const ir::Value& v : model.graph.values()) {
      if (v.kind != ir::ValueKind::param) continue;
      ++params;
      const tensor::GgufTensor* t = open.find(v.name);
      ASSERT_NE(t, nullptr) << v.name;
      EXPECT_EQ(static_cast<const void*>(v.data.raw()), static_cast<const void*>(t->bytes.data())) << v.name;
      EXPECT_EQ(v.data.bytes(), static_cast<int64_t>(t->bytes.size()));
      blocks += v.data.dtype() == DType::u8;
    }
    EXPECT_EQ(params, llama_tensors().size());
    EXPECT_EQ(blocks, type == "f32" ? 0u : 15u);
    EXPECT_EQ(model.config.at("eos_token_id").dump(), "[2]");
    EXPECT_EQ(model.name, "small");
  }
}

TEST_F(GgufModelTest, AnswersEndAtAllTokensThatEndTurns) {
  const auto ends = [&](const std::vector<std::pair<size_t, std::string>>& named, uint32_t eot) {
    std::vector<std::string> tokens;
    for (size_t i = 0; i < kWords; ++i) tokens.push_back("t" + std::to_string(i));
    for (const auto& [id, text] : named) tokens[id] = text;
    GgufWriter w = llama_metadata();
    w.set_texts("tokenizer.ggml.tokens", tokens);
    w.set_integer("tokenizer.ggml.eot_token_id", eot);
    return load_gguf(write_file(w, path("x.gguf"), "f32")).config.at("eos_token_id").dump();
  };
  EXPECT_EQ(ends({}, 7), "[2,7]");
  EXPECT_EQ(ends({{2, "<|im_end|>"}, {5, "<end_of_turn>"}, {6, "<|end|>"}}, 7), "[2,7,6,5]");
  // Where an answer has several parts, <|end|> stands between them.
  EXPECT_EQ(ends({{2, "<|return|>"}, {5, "<|call|>"}, {6, "<|end|>"}}, 2), "[2,5]");
  EXPECT_EQ(ends({}, kWords), "[2]");  // no such token
}

TEST_F(GgufModelTest, RefusesWhatItDoesNotHaveByName) {
  const auto refused = [&](const std::function<void(GgufWriter&)>& change) {
    GgufWriter w = llama_metadata();
    change(w);
    const std::string file = write_file(std::move(w), path("x.gguf"), "f32");
    return message_of([&] { load_gguf(file); });
  };
  EXPECT_EQ(refused([](GgufWriter&) {}), "no error");
  EXPECT_EQ(refused([](GgufWriter& w) { w.set_integer("llama.attention.sliding_window", 0); }), "no error");
  const auto has = [](const std::string& message, const std::string& part) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  has(refused([](GgufWriter& w) { w.set_text("general.architecture", "mamba"); }), "'mamba'");
  has(refused([](GgufWriter& w) { w.set_text("llama.rope.scaling.type", "spiral"); }), "'spiral'");
  has(refused([](GgufWriter& w) { w.set_number("llama.attention.clamp_kqv", 8); }), "clamp_kqv");
  has(refused([](GgufWriter& w) { w.set_integer("llama.attention.value_length", 4); }),
      "values of another width");
  has(refused([](GgufWriter& w) { w.set_integer("llama.attention.head_count", 0); }), "head_count' is 0");
  has(refused([](GgufWriter& w) { w.set_integer("llama.attention.head_count", 5); }), "5 heads");
  has(refused([](GgufWriter& w) { w.set_integer("llama.block_count", 2000000000); }), "block_count");
  has(refused([](GgufWriter& w) { w.set_integer("llama.block_count", 3); }), "no tensor 'blk.2.");
  has(refused([](GgufWriter& w) { w.set_integer("llama.context_length", 2000000000); }), "positions");
  has(refused([](GgufWriter& w) { w.set_integer("llama.context_length", 10000000); }), "beside an embedding");
  has(refused([](GgufWriter& w) { w.set_integer("llama.feed_forward_length", 65); }), "the metadata wants");
  has(refused([](GgufWriter& w) { w.set_text("llama.embedding_length", "wide"); }),
      "is text, not an integer");
}

TEST_F(GgufModelTest, AnySizesAreReadOrRefused) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 300; ++trial) {
    GgufWriter w = llama_metadata();
    const char* keys[] = {"llama.context_length",       "llama.embedding_length",
                          "llama.block_count",          "llama.feed_forward_length",
                          "llama.attention.head_count", "llama.attention.head_count_kv",
                          "llama.attention.key_length", "llama.rope.dimension_count",
                          "llama.expert_count",         "llama.attention.sliding_window"};
    for (int i = 0; i < 2; ++i)
      w.set_integer(keys[random() % std::size(keys)], random() % 4 == 0 ? random() : random() % 70);
    const std::string message = message_of([&] { load_gguf(write_file(w, path("y.gguf"), "q8_0")); });
    EXPECT_EQ(message.find("internal"), std::string::npos) << message;
  }
}

TEST_F(GgufModelTest, QuantizesWithSmallErrors) {
  const std::string file = write_file(llama_metadata(), path("x.gguf"), "f32");
  base::ThreadPool pool(2);
  // Formats, and the relative error that their bits allow for evenly spread numbers.
  const std::vector<std::pair<std::string, double>> formats{{"f32", 0},     {"bf16", 2e-3}, {"f16", 3e-4},
                                                            {"q8_0", 6e-3}, {"q4_0", 0.1},  {"q5_1", 0.05}};
  for (const auto& [format, allowed] : formats) {
    const std::string out = path(format + ".gguf");
    const GgufFile given = GgufFile::open(file);
    const QuantizeReport report = write_quantized(gguf_source(given), format, out, pool);
    const GgufFile written = GgufFile::open(out);
    EXPECT_EQ(written.metadata().text("general.name"), "small");
    ASSERT_EQ(report.tensors.size(), given.tensors().size());
    for (const QuantizedTensor& t : report.tensors) {
      EXPECT_LE(t.relative, allowed) << format << " " << t.name;
      EXPECT_EQ(written.find(t.name)->type->name, t.to);
      EXPECT_EQ(static_cast<int64_t>(written.find(t.name)->bytes.size()), t.bytes_after);
      EXPECT_EQ(t.to, t.dims.size() == 1 ? "f32" : format);
      EXPECT_TRUE(t.dims.size() == 2 || t.relative == 0);
      EXPECT_TRUE(t.dims.size() == 1 || format[0] != 'q' || t.relative > 0);
    }
    EXPECT_NO_THROW(load_gguf(out)) << format;
    // Writing again in the same format gives the same bytes.
    const std::string again = path("again.gguf");
    write_quantized(gguf_source(written), format, again, pool);
    const GgufFile copied = GgufFile::open(again);
    for (const tensor::GgufTensor& t : copied.tensors()) {
      const auto other = written.find(t.name)->bytes;
      EXPECT_TRUE(std::equal(t.bytes.begin(), t.bytes.end(), other.begin(), other.end())) << t.name;
    }
  }
  EXPECT_NE(message_of([&] {
              write_quantized(gguf_source(GgufFile::open(file)), "q9_z", path("n"), pool);
            }).find("q9_z"),
            std::string::npos);
  EXPECT_NE(message_of([&] {
              write_quantized(gguf_source(GgufFile::open(file)), "i32", path("n"), pool);
            }).find("written as i32"),
            std::string::npos);
}

/// A file written from one with wider gaps between tensors has the usual ones, and says so.
TEST_F(GgufModelTest, AlignmentIsTheWritersOwn) {
  GgufWriter w = llama_metadata();
  w.set_integer("general.alignment", 64);
  GgufWriter probe = w;
  for (const Planned& t : llama_tensors()) probe.add(t.name, t.dims, tensor::gguf_type("f32"));
  // The tensors begin at a multiple of 64 bytes, as the key says.
  if (probe.header().size() % 64 != 0) w.set_text("general.name", "small" + std::string(32, '-'));
  const std::string file = write_file(w, path("x.gguf"), "f32");
  base::ThreadPool pool(1);
  write_quantized(gguf_source(GgufFile::open(file)), "q8_0", path("y.gguf"), pool);
  const GgufFile written = GgufFile::open(path("y.gguf"));
  EXPECT_FALSE(written.metadata().has("general.alignment"));
  EXPECT_EQ(written.tensors().size(), llama_tensors().size());
}

/// Without a head of its own a model has its embedding there.
TEST_F(GgufModelTest, TheHeadKeepsSixBits) {
  base::ThreadPool pool(1);
  const auto types = [&](const std::vector<std::string>& names, const std::string& format) {
    GgufSource source;
    for (const std::string& name : names)
      source.tensors.push_back({name, {4, 256}, "f32", [] { return std::vector<float>(1024, 0.5f); }, {}});
    std::string list;
    for (const QuantizedTensor& t : write_quantized(source, format, path("x.gguf"), pool).tensors)
      list += t.to + " ";
    return list;
  };
  EXPECT_EQ(types({"token_embd.weight", "blk.0.attn_q.weight"}, "q4_0"), "q6_k q4_0 ");
  EXPECT_EQ(types({"token_embd.weight", "output.weight"}, "q4_0"), "q4_0 q6_k ");
  EXPECT_EQ(types({"token_embd.weight"}, "q8_0"), "q8_0 ");
}

TEST_F(GgufModelTest, RowsThatAreNoBlocksGetAnotherFormat) {
  const std::string file = write_file(llama_metadata(), path("x.gguf"), "f32");
  base::ThreadPool pool(1);
  const QuantizeReport report =
      write_quantized(gguf_source(GgufFile::open(file)), "q4_k", path("y.gguf"), pool);
  for (const QuantizedTensor& t : report.tensors) {
    EXPECT_EQ(t.to, t.dims.size() == 1 ? "f32" : "q8_0");  // rows of 32 and 64
    EXPECT_FALSE(t.why.empty());
  }
}

}  // namespace
}  // namespace trireme::model::gguf
