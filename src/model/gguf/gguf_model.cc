// Language models in GGUF files; their weights stay in the mapped file.
#include "model/gguf/gguf_model.h"

#include <algorithm>

#include "base/files/file.h"
#include "model/gguf/gguf_config.h"
#include "tensor/blocks/block_format.h"
#include "tensor/half.h"

namespace trireme::model::gguf {
namespace {

using tensor::Dims;
using tensor::DType;
using tensor::GgufFile;
using tensor::GgufTensor;
using tensor::Tensor;

/// Rows [begin, end) of a tensor in the file.
struct Part {
  const GgufTensor* tensor = nullptr;
  int64_t begin = 0, end = 0;
  Dims dims;  ///< of these rows
};

/// Converts 16-bit floats to f32.
Tensor widened(const Part& part, const std::byte* from) {
  Tensor out = Tensor::empty(DType::f32, part.dims);
  const bool is_half = part.tensor->type->name == "f16";
  auto values = out.mutable_data<float>();
  for (size_t i = 0; i < values.size(); ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, from + 2 * i, sizeof(bits));
    values[i] = is_half ? tensor::f16_bits_to_f32(bits) : tensor::bf16_bits_to_f32(bits);
  }
  return out;
}

/// The tensors of a file, under the names that the decoder asks for.
class GgufParams : public ParamSource {
 public:
  GgufParams(const GgufFile& file, const std::vector<JoinedTensor>& joined) : file_(file), joined_(joined) {}

  Tensor get(const std::string& name, const Dims& dims, const Init&) override {
    StoredParam p = read(name, dims, false);
    if (!p.format.empty())
      base::fail_unsupported("tensor '", name, "' in ", p.format,
                             ", which is used otherwise than as a matrix");
    return std::move(p.data);
  }

  StoredParam stored(const std::string& name, const Dims& dims, const Init&) override {
    return read(name, dims, !name.starts_with("position_embd"));
  }

 private:
  /// `keeps_halves`: matrices of 16-bit floats are not widened.
  StoredParam read(const std::string& name, const Dims& dims, bool keeps_halves) const {
    try {
      return stored_part(part(name), dims, keeps_halves);
    } catch (const base::Error& e) {
      throw e.with(base::concat("tensor '", name, "'"));
    }
  }

  Part part(const std::string& name) const {
    for (const JoinedTensor& j : joined_) {
      int64_t row = 0;
      for (size_t i = 0; i < j.parts.size(); row += j.rows[i++]) {
        const size_t at = name.find(base::concat(".", j.parts[i], "."));
        if (at == std::string::npos) continue;
        const std::string whole =
            base::concat(name.substr(0, at + 1), j.name, name.substr(at + 1 + j.parts[i].size()));
        return rows_of(need(whole), row, row + j.rows[i]);
      }
    }
    const GgufTensor& t = need(name);
    return rows_of(t, 0, t.dims.empty() ? 0 : t.dims[0]);
  }

  const GgufTensor& need(const std::string& name) const {
    const GgufTensor* t = file_.find(name);
    if (t == nullptr) base::fail(base::ErrorCode::not_found, "the file has no tensor '", name, "'");
    return *t;
  }

  static Part rows_of(const GgufTensor& t, int64_t begin, int64_t end) {
    base::require(!t.dims.empty() && end <= t.dims[0], "it is ", tensor::to_string(t.dims),
                  ", wanted are rows ", begin, " to ", end);
    Part part{&t, begin, end, t.dims};
    part.dims[0] = end - begin;
    return part;
  }

  StoredParam stored_part(Part part, const Dims& dims, bool keeps_halves) const {
    const GgufTensor& t = *part.tensor;
    const bool is_one_row = part.dims.size() == 1 && dims == Dims{1, part.dims[0]};
    if (is_one_row) part.dims = dims;
    base::require(part.dims == dims, "it is ", tensor::to_string(part.dims), ", the metadata wants ",
                  tensor::to_string(dims));
    const auto row = t.dims[0] == 0 ? 0 : static_cast<int64_t>(t.bytes.size()) / t.dims[0];
    const std::span<const std::byte> bytes = t.bytes.subspan(
        static_cast<size_t>(part.begin * row), static_cast<size_t>((part.end - part.begin) * row));
    if (t.type->name == "f32") return {floats(bytes, dims), {}};
    if (t.type->name == "f16" || t.type->name == "bf16") {
      const bool is_kept = keeps_halves && is_kept_matrix(bytes, dims);
      return is_kept ? halves(t.type->name, bytes, dims) : StoredParam{widened(part, bytes.data()), {}};
    }
    const tensor::BlockFormat* format = tensor::find_block_format_by_gguf(static_cast<int>(t.type->id));
    if (format == nullptr) base::fail_unsupported("weights of type ", t.type->name);
    const int64_t row_bytes = t.type->row_bytes(dims.back());
    const int64_t rows = row_bytes == 0 ? 0 : static_cast<int64_t>(bytes.size()) / row_bytes;
    return {Tensor::view(DType::u8, {rows, row_bytes}, bytes, file_.owner()), std::string(format->name)};
  }

  /// Whether a matrix stays in 16 bits: rows of whole runs of 32 weights, large enough, and aligned.
  static bool is_kept_matrix(std::span<const std::byte> bytes, const Dims& dims) {
    constexpr int64_t kLeastKept = 4096;
    return dims.size() >= 2 && dims.back() % 32 == 0 && tensor::element_count(dims) >= kLeastKept &&
           reinterpret_cast<uintptr_t>(bytes.data()) % alignof(uint16_t) == 0;
  }

  StoredParam halves(std::string_view type, std::span<const std::byte> bytes, const Dims& dims) const {
    const Dims rows{tensor::element_count(dims) / dims.back(), dims.back()};
    const DType dtype = type == "f16" ? DType::f16 : DType::bf16;
    return {.data = Tensor::view(dtype, rows, bytes, file_.owner()), .from = std::string(type)};
  }

  /// A view of the floats if they are aligned, else a copy.
  Tensor floats(std::span<const std::byte> bytes, const Dims& dims) const {
    if (reinterpret_cast<uintptr_t>(bytes.data()) % alignof(float) == 0)
      return Tensor::view(DType::f32, dims, bytes, file_.owner());
    Tensor copy = Tensor::empty(DType::f32, dims);
    std::copy(bytes.begin(), bytes.end(), copy.mutable_raw());
    return copy;
  }

  const GgufFile& file_;
  const std::vector<JoinedTensor>& joined_;
};

/// The tokens that end an answer. Files often name one of them only, and the others are known by their texts,
/// as in llama.cpp.
std::vector<int64_t> end_tokens_of(const GgufFile& file, int64_t vocabulary) {
  constexpr std::string_view kEnds[] = {"<|eot_id|>",      "<|im_end|>", "<|end|>",    "<end_of_turn>",
                                        "<|eom_id|>",      "<|return|>", "<|call|>",   "<|endoftext|>",
                                        "<|end_of_text|>", "<EOT>",      "\u2581<EOT>"};
  std::vector<int64_t> ends;
  const auto add = [&](int64_t id) {
    const bool is_new = std::find(ends.begin(), ends.end(), id) == ends.end();
    if (id >= 0 && id < vocabulary && is_new) ends.push_back(id);
  };
  for (const char* name : {"eos", "eot", "eom"}) {
    const std::string key = base::concat("tokenizer.ggml.", name, "_token_id");
    if (file.metadata().has(key)) add(file.metadata().integer(key));
  }
  if (!file.metadata().has("tokenizer.ggml.tokens")) return ends;
  const std::vector<std::string_view> tokens = file.metadata().texts("tokenizer.ggml.tokens");
  const auto id_of = [&](std::string_view text) -> int64_t {
    const auto at = std::find(tokens.begin(), tokens.end(), text);
    return at == tokens.end() ? -1 : at - tokens.begin();
  };
  // In gpt-oss <|end|> stands between the parts of an answer.
  const bool has_parts = id_of("<|return|>") >= 0 && id_of("<|call|>") >= 0;
  for (const std::string_view text : kEnds) {
    if (!has_parts || text != "<|end|>") add(id_of(text));
  }
  return ends;
}

/// What hf::end_tokens reads: the tokens that end an answer; and what readers of adapters read.
base::Json config_of(const GgufFile& file, const GgufDecoder& d) {
  const zoo::DecoderConfig& c = d.config;
  base::Json config = base::Json::object({{kArchitectureKey, c.name}});
  config.set(kSizesKey, base::Json::object({{"layers", static_cast<int64_t>(c.layers.size())},
                                            {"heads", c.heads},
                                            {"kv_heads", c.kv_heads},
                                            {"head_dim", c.head_dim},
                                            {"width", c.width},
                                            {"inner", c.inner}}));
  base::Json ends = base::Json::array();
  for (const int64_t id : end_tokens_of(file, c.vocabulary)) ends.push_back(id);
  config.set("eos_token_id", std::move(ends));
  return config;
}

}  // namespace

Model load_gguf(const GgufFile& file) {
  const GgufDecoder d = read_gguf_decoder(file);
  zoo::check_tables(d.config);
  GgufParams params(file, d.joined);
  Model model = zoo::decoder(d.config, params);
  model.format = "gguf";
  model.name = std::string(file.metadata().text("general.name", d.config.name));
  model.graph.name = model.name;
  model.config = config_of(file, d);
  return model;
}

Model load_gguf(const std::string& path) {
  try {
    const auto mapped = base::MappedFile::open(path);
    Model model = load_gguf(GgufFile::parse(mapped->text(), mapped));
    model.directory = path;
    model.files.push_back(mapped);
    return model;
  } catch (const base::Error& e) {
    throw e.with(base::concat("file '", path, "'"));
  }
}

}  // namespace trireme::model::gguf
