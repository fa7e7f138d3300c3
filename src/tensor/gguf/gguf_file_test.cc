// GGUF files: what is written can be read, every prefix of a file and every changed byte gives an error or a
// valid file, and all kinds of false counts, lengths, offsets and types are refused.
#include "tensor/gguf/gguf_file.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "base/error.h"
#include "base/files/scratch.h"
#include "tensor/gguf/gguf_writer.h"

namespace trireme::tensor {
namespace {

GgufFile parse(const std::string& bytes) {
  const auto owner = std::make_shared<std::string>(bytes);
  return GgufFile::parse(*owner, owner);
}

template <class T>
std::string number(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof(T)};
}
std::string text(const std::string& s) { return number<uint64_t>(s.size()) + s; }

/// A file with these encoded entries and tensors, and `data` bytes after the directory.
std::string file_of(const std::vector<std::string>& values, const std::vector<std::string>& tensors,
                    size_t data = 0) {
  std::string bytes =
      "GGUF" + number<uint32_t>(3) + number<uint64_t>(tensors.size()) + number<uint64_t>(values.size());
  for (const std::string& v : values) bytes += v;
  for (const std::string& t : tensors) bytes += t;
  bytes.append((32 - bytes.size() % 32) % 32, '\0');
  return bytes.append(data, 'x');
}
std::string entry(const std::string& key, uint32_t kind, const std::string& content) {
  return text(key) + number(kind) + content;
}
std::string tensor(const std::string& name, const std::vector<uint64_t>& extents, uint32_t type,
                   uint64_t offset) {
  std::string bytes = text(name) + number<uint32_t>(static_cast<uint32_t>(extents.size()));
  for (const uint64_t e : extents) bytes += number(e);
  return bytes + number(type) + number(offset);
}

GgufWriter sample() {
  GgufWriter w;
  w.set_text("general.architecture", "llama");
  w.set_integer("llama.block_count", 7);
  w.set_number("llama.rope.freq_base", 5e5f);
  w.set_flag("tokenizer.ggml.add_bos_token", true);
  w.set_texts("tokenizer.ggml.tokens", std::vector<std::string>{"<s>", "", "\xe2\x96\x81the"});
  w.set_integers("tokenizer.ggml.token_type", std::vector<int32_t>{3, -1, 1});
  w.set_numbers("tokenizer.ggml.scores", std::vector<float>{0, -1.5f, 2});
  w.add("b", {2, 64}, gguf_type("q4_0"));
  w.add("a", {3}, gguf_type("f32"));
  w.add("empty", {0, 32}, gguf_type("q8_0"));
  return w;
}

std::string content(size_t i) {
  if (i == 1) return number(1.0f) + number(2.0f) + number(-3.0f);
  return std::string(i == 0 ? 72 : 0, static_cast<char>(65 + i));
}

std::string bytes_of(const GgufWriter& w) {
  std::string bytes = w.header();
  for (size_t i = 0; i < w.tensors(); ++i) {
    bytes += content(i);
    bytes.append((32 - bytes.size() % 32) % 32, '\0');
  }
  return bytes;
}

TEST(Gguf, ReadsWhatIsWritten) {
  const auto scratch = base::make_scratch("trireme-gguf");
  const std::string path = *scratch + "/x.gguf";
  sample().write(path, content);
  const GgufFile file = GgufFile::open(path);
  const GgufMetadata& m = file.metadata();
  EXPECT_EQ(m.text("general.architecture"), "llama");
  EXPECT_EQ(m.integer("llama.block_count"), 7);
  EXPECT_EQ(m.number("llama.rope.freq_base"), 5e5);
  EXPECT_EQ(m.number("llama.block_count"), 7);
  EXPECT_TRUE(m.flag("tokenizer.ggml.add_bos_token", false));
  EXPECT_TRUE(m.flag("tokenizer.ggml.add_eos_token", true));
  EXPECT_EQ(m.texts("tokenizer.ggml.tokens"), (std::vector<std::string_view>{"<s>", "", "\xe2\x96\x81the"}));
  EXPECT_EQ(m.integers("tokenizer.ggml.token_type"), (std::vector<int64_t>{3, -1, 1}));
  EXPECT_EQ(m.numbers("tokenizer.ggml.scores"), (std::vector<double>{0, -1.5, 2}));
  EXPECT_EQ(m.integer("none", -7), -7);
  EXPECT_EQ(m.entries().size(), 7u);
  ASSERT_EQ(file.tensors().size(), 3u);
  EXPECT_EQ(file.tensors()[0].name, "a");
  const GgufTensor* b = file.find("b");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->dims, (Dims{2, 64}));
  EXPECT_EQ(b->type->name, "q4_0");
  EXPECT_EQ(b->bytes.size(), 72u);
  EXPECT_EQ(b->bytes[71], std::byte{'A'});
  EXPECT_EQ(reinterpret_cast<uintptr_t>(b->bytes.data()) % 32, 0u);
  EXPECT_EQ(file.find("c"), nullptr);
}

TEST(Gguf, GettersNameKeyAndKind) {
  const GgufFile file = parse(bytes_of(sample()));
  const auto message = [&](const std::function<void()>& f) {
    try {
      f();
    } catch (const base::Error& e) {
      return e.message();
    }
    return std::string();
  };
  const GgufMetadata& m = file.metadata();
  EXPECT_NE(message([&] { m.integer("general.architecture"); }).find("is text, not an integer"),
            std::string::npos);
  EXPECT_NE(message([&] { m.text("tokenizer.ggml.tokens"); }).find("array of 3 text"), std::string::npos);
  EXPECT_NE(message([&] { m.texts("tokenizer.ggml.scores"); }).find("array of 3 f32"), std::string::npos);
  EXPECT_NE(message([&] { m.integers("tokenizer.ggml.scores"); }).find("not an array of integers"),
            std::string::npos);
  EXPECT_NE(message([&] { m.flag("llama.block_count", false); }).find("not a boolean"), std::string::npos);
  EXPECT_NE(message([&] { m.text("none"); }).find("'none'"), std::string::npos);
}

TEST(Gguf, RefusesLies) {
  const uint64_t huge = uint64_t{1} << 62;
  const std::string one = number<uint32_t>(1);
  for (const std::string& bad : {
           std::string(),
           std::string("GGML"),
           std::string("GGUF"),
           "GGUF" + number<uint32_t>(1) + std::string(64, '\0'),
           "GGUF" + number<uint32_t>(3u << 24) + std::string(64, '\0'),
           "GGUF" + number<uint32_t>(3) + number(huge) + number(uint64_t{0}),
           "GGUF" + number<uint32_t>(3) + number(uint64_t{0}) + number(huge),
           file_of({entry("", 4, one)}, {}),
           file_of({entry("k", 99, one)}, {}),
           file_of({entry("k", 7, "\x02")}, {}),                              // a boolean
           file_of({entry("k", 8, number(huge))}, {}),                        // length of a text
           file_of({entry("k", 9, number<uint32_t>(4) + number(huge))}, {}),  // length of an array
           file_of({entry("k", 9, number<uint32_t>(8) + number(huge))}, {}),
           file_of({entry("k", 9, number<uint32_t>(9) + number(uint64_t{1}))}, {}),  // nested
           file_of({entry("k", 4, one), entry("k", 4, one)}, {}),                    // duplicate key
           file_of({entry("general.alignment", 4, number<uint32_t>(0))}, {}),
           file_of({entry("general.alignment", 4, number<uint32_t>(12))}, {}),
           file_of({entry("general.alignment", 8, text("x"))}, {}),
           file_of({}, {tensor("a", {4}, 0, 0)}, 15),   // ends too late
           file_of({}, {tensor("a", {4}, 0, 64)}, 64),  // begins too late
           file_of({}, {tensor("a", {4}, 0, huge)}, 64),
           file_of({}, {tensor("a", {4}, 0, 8)}, 64),   // not aligned
           file_of({}, {tensor("a", {33}, 2, 0)}, 64),  // half a block
           file_of({}, {tensor("a", {4}, 5, 0)}, 64),   // unknown type
           file_of({}, {tensor("a", {huge}, 0, 0)}, 64),
           file_of({}, {tensor("a", {uint64_t{1} << 40, uint64_t{1} << 40}, 0, 0)}, 64),
           file_of({}, {tensor("a", {1, 1, 1, 1, 1}, 0, 0)}, 64),
           file_of({}, {tensor("", {4}, 0, 0)}, 64),
           file_of({}, {tensor("a", {4}, 0, 0), tensor("a", {4}, 0, 32)}, 64),   // duplicate name
           file_of({}, {tensor("a", {16}, 0, 0), tensor("b", {4}, 0, 32)}, 64),  // overlap
       }) {
    EXPECT_THROW(parse(bad), base::Error) << bad.substr(0, 80);
  }
  EXPECT_NO_THROW(parse(file_of({}, {tensor("a", {4}, 0, 32), tensor("b", {4}, 0, 0)}, 48)));
  EXPECT_NO_THROW(parse(file_of({}, {tensor("scalar", {}, 0, 0)}, 4)));
}

TEST(Gguf, EveryPrefixAndChangedByteIsReadOrRefused) {
  const std::string good = bytes_of(sample());
  const size_t header = sample().header().size();
  for (size_t n = 0; n < header; ++n) EXPECT_THROW(parse(good.substr(0, n)), base::Error) << n;
  std::mt19937 random(7);
  int refused = 0;
  for (int trial = 0; trial < 4000; ++trial) {
    std::string bytes = good;
    for (int i = 0; i < 1 + trial % 3; ++i)
      bytes[random() % sample().header().size()] = static_cast<char>(random());
    try {
      const GgufFile file = parse(bytes);
      for (const auto& [key, value] : file.metadata().entries())
        if (value.is_array && value.kind == GgufKind::text) file.metadata().texts(key);
    } catch (const base::Error& e) {
      ASSERT_NE(e.code(), base::ErrorCode::internal) << e.message();
      ++refused;
    }
  }
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace trireme::tensor
