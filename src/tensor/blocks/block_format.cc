// The table of block formats.
#include "tensor/blocks/block_format.h"

#include <array>
#include <string>

#include "base/error.h"
#include "tensor/blocks/codecs.h"

namespace trireme::tensor {
namespace {

constexpr int64_t kSmall = blocks::kSmall, kLarge = blocks::kLarge;

constexpr size_t kOfGguf = 12;

const std::array<BlockFormat, kOfGguf + 6>& table() {
  const auto row = [](std::string_view name, int gguf, int64_t weights, int64_t bytes,
                      const blocks::Codec& c) {
    return BlockFormat{name, gguf, weights, bytes, c.decode, c.encode};
  };
  static const std::array<BlockFormat, kOfGguf + 6> rows{
      row("q4_0", 2, kSmall, 18, blocks::kQ4_0),     row("q4_1", 3, kSmall, 20, blocks::kQ4_1),
      row("q5_0", 6, kSmall, 22, blocks::kQ5_0),     row("q5_1", 7, kSmall, 24, blocks::kQ5_1),
      row("q8_0", 8, kSmall, 34, blocks::kQ8_0),     row("q2_k", 10, kLarge, 84, blocks::kQ2K),
      row("q3_k", 11, kLarge, 110, blocks::kQ3K),    row("q4_k", 12, kLarge, 144, blocks::kQ4K),
      row("q5_k", 13, kLarge, 176, blocks::kQ5K),    row("q6_k", 14, kLarge, 210, blocks::kQ6K),
      row("iq4_nl", 20, kSmall, 18, blocks::kIq4Nl), row("mxfp4", 39, kSmall, 17, blocks::kMxfp4),
      row("int4_g32", -1, 32, 21, blocks::kInt4G32), row("int4_g128", -1, 128, 69, blocks::kInt4G128),
      row("int8_g32", -1, 32, 37, blocks::kInt8G32), row("int8_g128", -1, 128, 133, blocks::kInt8G128),
      row("bf16", -1, kSmall, 64, blocks::kBf16),    row("f16", -1, kSmall, 64, blocks::kF16),
  };
  return rows;
}

}  // namespace

std::span<const BlockFormat> block_formats() { return std::span(table()).first(kOfGguf); }
std::span<const BlockFormat> all_block_formats() { return table(); }

const BlockFormat* find_block_format(std::string_view name) {
  for (const BlockFormat& f : block_formats()) {
    if (f.name == name) return &f;
  }
  return nullptr;
}

const BlockFormat* find_block_format_by_gguf(int type) {
  for (const BlockFormat& f : block_formats()) {
    if (f.gguf_type == type) return &f;
  }
  return nullptr;
}

const BlockFormat& need_block_format(std::string_view name) {
  std::string known;
  for (const BlockFormat& f : table()) {
    if (f.name == name) return f;
    known += " " + std::string(f.name);
  }
  base::fail_invalid("no block format '", name, "'; known:", known);
}

}  // namespace trireme::tensor
