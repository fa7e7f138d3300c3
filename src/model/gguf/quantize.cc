// Rewrites models as GGUF files in another precision.
#include "model/gguf/quantize.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "tensor/blocks/block_format.h"
#include "tensor/half.h"

namespace trireme::model::gguf {
namespace {

using tensor::BlockFormat;
using tensor::GgufType;

/// ftype in the metadata: llama.cpp's name for the type of most tensors of a file.
struct FileType {
  std::string_view format;
  uint32_t number;
};
constexpr FileType kFileTypes[] = {{"f32", 0},   {"f16", 1},   {"q4_0", 2},    {"q4_1", 3},  {"q8_0", 7},
                                   {"q5_0", 8},  {"q5_1", 9},  {"q2_k", 10},   {"q3_k", 12}, {"q4_k", 15},
                                   {"q5_k", 17}, {"q6_k", 18}, {"iq4_nl", 25}, {"bf16", 32}, {"mxfp4", 38}};

bool is_plain(std::string_view type) { return type == "f32" || type == "f16" || type == "bf16"; }

/// Converts n floats at `from` to a plain type; from_plain() converts back.
void to_plain(std::string_view type, const float* from, size_t n, char* to) {
  if (type == "f32") return void(std::memcpy(to, from, n * 4));
  for (size_t i = 0; i < n; ++i) {
    const uint16_t bits =
        type == "f16" ? tensor::f32_to_f16_bits(from[i]) : tensor::f32_to_bf16_bits(from[i]);
    std::memcpy(to + 2 * i, &bits, 2);
  }
}
void from_plain(std::string_view type, const char* from, size_t n, float* to) {
  if (type == "f32") return void(std::memcpy(to, from, n * 4));
  for (size_t i = 0; i < n; ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, from + 2 * i, 2);
    to[i] = type == "f16" ? tensor::f16_bits_to_f32(bits) : tensor::bf16_bits_to_f32(bits);
  }
}

/// Decodes rows of a type from bytes to floats.
std::vector<float> decoded(const GgufType& type, const char* bytes, int64_t elements,
                           base::ThreadPool* pool) {
  std::vector<float> values(static_cast<size_t>(elements));
  if (is_plain(type.name)) {
    from_plain(type.name, bytes, values.size(), values.data());
    return values;
  }
  const BlockFormat* format = tensor::find_block_format_by_gguf(static_cast<int>(type.id));
  if (format == nullptr) base::fail_unsupported("weights of type ", type.name);
  const auto decode = [&](int64_t begin, int64_t end) {
    format->decode(reinterpret_cast<const uint8_t*>(bytes) + begin * format->bytes, end - begin,
                   values.data() + begin * format->weights);
  };
  const int64_t blocks = elements / format->weights;
  if (pool == nullptr) {
    decode(0, blocks);
  } else {
    pool->for_range(blocks, 256, decode);
  }
  return values;
}

/// How much each error in a block counts: the importance of the channel, times a factor that grows with the
/// weight, as in llama.cpp. `at`: the position of the block's first weight in the matrix.
void weigh(std::span<const float> block, const std::vector<float>& importance, int64_t at,
           std::vector<float>& by) {
  float squares = 0;
  for (const float w : block) squares += w * w;
  const float spread = 2 * squares / static_cast<float>(block.size());
  const float* channels = importance.data() + at % static_cast<int64_t>(importance.size());
  for (size_t i = 0; i < block.size(); ++i) by[i] = channels[i] * std::sqrt(spread + block[i] * block[i]);
}

/// `importance` [width]: of the channels of a row, or null.
std::string encoded(const GgufType& type, const std::vector<float>& values,
                    const std::vector<float>* importance, base::ThreadPool& pool) {
  const auto elements = static_cast<int64_t>(values.size());
  std::string bytes(static_cast<size_t>(elements / type.elements * type.bytes), '\0');
  if (is_plain(type.name)) {
    to_plain(type.name, values.data(), values.size(), bytes.data());
    return bytes;
  }
  const BlockFormat* format = tensor::find_block_format_by_gguf(static_cast<int>(type.id));
  if (format == nullptr || format->encode == nullptr) base::fail_unsupported("writing of type ", type.name);
  pool.for_range(elements / format->weights, 64, [&](int64_t begin, int64_t end) {
    const auto put = [&](int64_t first, int64_t count, const float* by) {
      format->encode(values.data() + first * format->weights, count,
                     reinterpret_cast<uint8_t*>(bytes.data()) + first * format->bytes, by);
    };
    if (importance == nullptr) return put(begin, end - begin, nullptr);
    std::vector<float> by(static_cast<size_t>(format->weights));
    for (int64_t block = begin; block < end; ++block) {
      weigh({values.data() + block * format->weights, by.size()}, *importance, block * format->weights, by);
      put(block, 1, by.data());
    }
  });
  return bytes;
}

/// Formats whose encoders use importance.
bool searches_scales(std::string_view format) { return format.ends_with("_k") || format == "iq4_nl"; }

/// Tensors that stay in f32: small ones, position tables, and routers, whose effect exceeds their size.
bool is_kept(const SourceTensor& t) {
  return t.dims.size() < 2 || !t.name.ends_with(".weight") ||
         t.name.find("ffn_gate_inp") != std::string::npos || t.name.starts_with("position_embd");
}

struct Choice {
  const GgufType* type;
  std::string why;
};

/// Whether products of logits read this tensor: without a head of its own a model has its embedding there.
bool holds_head(const GgufSource& source, const std::string& name) {
  if (name == "output.weight") return true;
  const auto is_own = [](const SourceTensor& t) { return t.name == "output.weight"; };
  return name == "token_embd.weight" && std::none_of(source.tensors.begin(), source.tensors.end(), is_own);
}

Choice choose(const SourceTensor& t, const GgufType& wanted, bool is_head) {
  if (is_kept(t)) return {&tensor::gguf_type("f32"), wanted.name == "f32" ? "" : "few weights"};
  const int64_t width = t.dims.back();
  const bool is_small = wanted.bytes * 8 < 6 * wanted.elements;  // fewer than 6 bits per weight
  const GgufType& six = tensor::gguf_type("q6_k");
  if (is_head && is_small && width % six.elements == 0) return {&six, "the head"};
  if (width % wanted.elements == 0) return {&wanted, ""};
  const GgufType& eight = tensor::gguf_type("q8_0");
  if (width % eight.elements == 0 && wanted.elements > eight.elements)
    return {&eight, base::concat("rows of ", width)};
  return {&tensor::gguf_type("f16"), base::concat("rows of ", width)};
}

void measure(const std::vector<float>& given, const std::vector<float>& written, QuantizedTensor& row) {
  double all = 0, lost = 0;
  for (size_t i = 0; i < given.size(); ++i) {
    const double difference = double(given[i]) - double(written[i]);
    all += double(given[i]) * double(given[i]);
    lost += difference * difference;
    row.largest = std::max(row.largest, std::abs(difference));
  }
  row.relative = all > 0 ? std::sqrt(lost / all) : 0;
}

void check_finite(const SourceTensor& t, const std::vector<float>& values) {
  const auto bad = std::find_if(values.begin(), values.end(), [](float v) { return !std::isfinite(v); });
  base::require(bad == values.end(), "tensor '", t.name, "' holds a number that is not finite");
}

}  // namespace

GgufSource gguf_source(const tensor::GgufFile& file) {
  GgufSource source;
  source.owner = file.owner();
  for (const auto& [key, value] : file.metadata().entries()) {
    if (key != "general.alignment") source.metadata.set(key, value);  // the writer has its own
  }
  for (const tensor::GgufTensor& t : file.tensors()) {
    if (!is_plain(t.type->name) && tensor::find_block_format_by_gguf(static_cast<int>(t.type->id)) == nullptr)
      base::fail_unsupported("tensor '", t.name, "' of type ", t.type->name);
    const auto values = [type = t.type, bytes = t.bytes, n = tensor::element_count(t.dims)] {
      return decoded(*type, reinterpret_cast<const char*>(bytes.data()), n, nullptr);
    };
    source.tensors.push_back({t.name, t.dims, std::string(t.type->name), values, t.bytes});
  }
  return source;
}

int64_t QuantizeReport::bytes_before() const {
  int64_t sum = 0;
  for (const QuantizedTensor& t : tensors) sum += t.bytes_before;
  return sum;
}

int64_t QuantizeReport::bytes_after() const {
  int64_t sum = 0;
  for (const QuantizedTensor& t : tensors) sum += t.bytes_after;
  return sum;
}

std::string QuantizeReport::text() const {
  std::string text;
  char line[256];
  for (const QuantizedTensor& t : tensors) {
    std::snprintf(
        line, sizeof(line), "%-32s %-16s %7s -> %-6s %12lld -> %12lld bytes  error %.5f, largest %.3g",
        t.name.substr(0, 60).c_str(), tensor::to_string(t.dims).c_str(), t.from.c_str(), t.to.c_str(),
        static_cast<long long>(t.bytes_before), static_cast<long long>(t.bytes_after), t.relative, t.largest);
    text += line + std::string(t.by_importance ? ", by importance" : "");
    text += (t.why.empty() ? "" : "  (" + t.why + ")") + "\n";
  }
  std::snprintf(line, sizeof(line), "%zu tensors, %.1f MB -> %.1f MB\n", tensors.size(),
                static_cast<double>(bytes_before()) / 1e6, static_cast<double>(bytes_after()) / 1e6);
  return text + line;
}

QuantizeReport write_quantized(const GgufSource& source, const std::string& format, const std::string& path,
                               base::ThreadPool& pool, const Importance& importance) {
  const GgufType& wanted = tensor::gguf_type(format);
  base::require(is_plain(wanted.name) || tensor::find_block_format(wanted.name) != nullptr,
                "no weights are written as ", format);
  tensor::GgufWriter writer = source.metadata;
  for (const FileType& type : kFileTypes) {
    if (type.format == wanted.name) writer.set_integer("general.file_type", type.number);
  }
  writer.set_integer("general.quantization_version", 2);
  QuantizeReport report;
  std::vector<const GgufType*> types;
  for (const SourceTensor& t : source.tensors) {
    const Choice choice = choose(t, wanted, holds_head(source, t.name));
    types.push_back(choice.type);
    writer.add(t.name, t.dims, *choice.type);
    QuantizedTensor row{t.name, t.stored_as, std::string(choice.type->name), t.dims};
    const GgufType& from = tensor::gguf_type(t.stored_as);
    const int64_t elements = tensor::element_count(t.dims);
    row.bytes_before = elements / from.elements * from.bytes;
    row.bytes_after = elements / choice.type->elements * choice.type->bytes;
    row.why = choice.why;
    report.tensors.push_back(std::move(row));
  }
  writer.write(path, [&](size_t i) {
    const SourceTensor& t = source.tensors[i];
    if (t.stored_as == types[i]->name && !t.bytes.empty())
      return std::string(reinterpret_cast<const char*>(t.bytes.data()), t.bytes.size());
    const std::vector<float> values = t.values();
    check_finite(t, values);
    const auto known = importance.find(t.of_network.empty() ? t.name : t.of_network);
    const bool fits =
        known != importance.end() && static_cast<int64_t>(known->second.size()) == t.dims.back();
    report.tensors[i].by_importance = fits && searches_scales(types[i]->name);
    std::string bytes = encoded(*types[i], values, fits ? &known->second : nullptr, pool);
    measure(values, decoded(*types[i], bytes.data(), static_cast<int64_t>(values.size()), &pool),
            report.tensors[i]);
    return bytes;
  });
  return report;
}

}  // namespace trireme::model::gguf
