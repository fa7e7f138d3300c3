// Writes decoders as Hugging Face directories with matrices in few bits.
#include "model/hf/quantized_directory.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>

#include "base/files/file.h"
#include "model/hf/checkpoint.h"
#include "model/hf/directory.h"
#include "model/hf/forms/forms.h"
#include "tensor/half.h"

namespace trireme::model::hf {
namespace {

namespace fs = std::filesystem;
using tensor::DType;
using tensor::Tensor;

constexpr std::string_view kWeight = ".weight";
constexpr int64_t kFileBytes = int64_t{5} << 30;

std::string stem_of(const std::string& name) { return name.substr(0, name.size() - kWeight.size()); }
std::string last_part(const std::string& stem) { return stem.substr(stem.find_last_of('.') + 1); }

/// A directory's configuration, its form, and its files.
struct Opened {
  base::Json config;
  Form form;
  std::vector<Safetensors> files;
};

Opened open(const std::string& directory) {
  Opened o{.config = read_config_json(directory), .form = {}, .files = open_checkpoint(directory)};
  const FormRow* row = find_form(o.config);
  if (row == nullptr)
    base::fail_unsupported("quantizing a model of type '", o.config.get_or("model_type", ""),
                           "': it is no decoder of the forms that are known");
  o.form = read_form(*row, o.config);
  if (o.form.quantization.method != Quantization::Method::none)
    base::fail_unsupported("'", directory, "' is quantized already");
  return o;
}

bool is_floats(DType type) { return type == DType::f32 || type == DType::f16 || type == DType::bf16; }

/// The number of weights in a group; by default whole rows, except for int4.
int64_t group_of(const DirectoryOptions& options, int64_t depth) {
  if (options.group > 0) return options.group;
  return options.to == DirectoryForm::int4 ? 128 : depth;
}

/// Why a linear layer is not quantized; empty if it is.
std::string why_left(const std::string& stem, const Tensor& t, const Form& form, const DirectoryOptions& o) {
  const zoo::DecoderNames& names = form.decoder.names;
  if (last_part(stem) == last_part(names.head)) return "the head";
  if (!names.router.empty() && last_part(stem) == names.router) return "a router";
  const int64_t depth = t.dims()[1], group = group_of(o, depth);
  if (depth % group != 0) return base::concat("a depth of ", depth, " is no multiple of ", group);
  if (depth % 32 != 0) return base::concat("a depth of ", depth, " is no multiple of 32");
  return {};
}

/// The names in the graph of the parts of one weight of the checkpoint.
std::vector<std::string> network_names(const std::string& name, const Form& form) {
  const auto with_prefix = [&](const std::string& n) {
    return n.starts_with(form.prefix) || n.starts_with(form.decoder.names.head) ? n : form.prefix + n;
  };
  for (const Joined& j : form.weights.joined) {
    const size_t at = name.find(j.name);
    if (at == std::string::npos) continue;
    std::vector<std::string> parts;
    for (const std::string& part : j.parts)
      parts.push_back(with_prefix(name.substr(0, at) + part + name.substr(at + j.name.size())));
    return parts;
  }
  for (const Numbered& n : form.weights.numbered) {
    const size_t at = name.find(n.first), end = name.rfind(n.last + std::string(kWeight));
    if (at == std::string::npos || end == std::string::npos) continue;
    return {with_prefix(name.substr(0, at) + n.name + std::string(kWeight))};
  }
  return {with_prefix(name)};
}

struct Sorted {
  std::map<std::string, LayerMatrix> layers;
  std::map<std::string, std::string> left;
};

Sorted sort_layers(const Opened& o, const DirectoryOptions& options) {
  Sorted sorted;
  const zoo::DecoderNames& names = o.form.decoder.names;
  const std::set<std::string> tables{names.embedding, names.positions};
  for (const Safetensors& file : o.files) {
    for (const auto& [name, t] : file.tensors()) {
      if (!name.ends_with(kWeight) || t.rank() != 2 || !is_floats(t.dtype())) continue;
      const std::string stem = stem_of(name);
      if (tables.contains(last_part(stem))) continue;
      const std::string why = why_left(stem, t, o.form, options);
      if (!why.empty()) {
        sorted.left.emplace(stem, why);
        continue;
      }
      sorted.layers.emplace(name, LayerMatrix{name, network_names(name, o.form), t.dims()[0], t.dims()[1]});
    }
  }
  if (sorted.layers.empty()) base::fail_unsupported("no matrix of the model can be stored so");
  return sorted;
}

/// Packs codes into words of 32 bits along the rows, the first code in the lowest bits.
Tensor words_of(const std::vector<uint8_t>& codes, int64_t rows, int64_t columns, int bits) {
  const int64_t each = 32 / bits, words = (columns + each - 1) / each;
  Tensor out = Tensor::zeros(DType::i32, {rows, words});
  int32_t* to = out.mutable_data<int32_t>().data();
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < columns; ++i) {
      const uint32_t code = codes[static_cast<size_t>(r * columns + i)];
      int32_t& word = to[r * words + i / each];
      word = static_cast<int32_t>(static_cast<uint32_t>(word) | code << (i % each * bits));
    }
  }
  return out;
}

Tensor scales_in(const std::vector<float>& scale, tensor::Dims dims, DType type) {
  if (type == DType::f32) return Tensor::from<float>(std::move(dims), std::span<const float>(scale));
  Tensor out = Tensor::empty(type, std::move(dims));
  for (size_t i = 0; i < scale.size(); ++i) {
    const uint16_t bits =
        type == DType::bf16 ? tensor::f32_to_bf16_bits(scale[i]) : tensor::f32_to_f16_bits(scale[i]);
    std::memcpy(out.mutable_raw() + 2 * i, &bits, sizeof bits);
  }
  return out;
}

/// Whether codes are packed into words: always for int4; for int8 only if activations stay floats.
bool is_packed(const DirectoryOptions& o) {
  return o.to == DirectoryForm::int4 || (o.to == DirectoryForm::int8 && (o.group > 0 || o.has_zeros));
}

/// Appends the tensors of a rounded matrix with the names of compressed-tensors.
void append(NamedTensors& out, const LayerMatrix& layer, const RoundedMatrix& m, const RoundedForm& form,
            const DirectoryOptions& options) {
  const std::string stem = stem_of(layer.name);
  const int64_t n = layer.rows, k = layer.depth, groups = k / form.group;
  if (is_packed(options)) {
    out.emplace_back(stem + ".weight_packed", words_of(m.codes, n, k, form.bits));
    out.emplace_back(stem + ".weight_shape", Tensor::from<int64_t>({2}, {n, k}));
  } else {
    Tensor w = Tensor::empty(form.is_float ? DType::f8e4m3fn : DType::i8, {n, k});
    for (size_t i = 0; i < m.codes.size(); ++i)
      w.mutable_raw()[i] = static_cast<std::byte>(form.is_float ? m.codes[i] : m.codes[i] ^ 0x80);
    out.emplace_back(stem + ".weight", std::move(w));
  }
  out.emplace_back(stem + ".weight_scale", scales_in(m.scale, {n, groups}, form.scale_type));
  if (!form.has_zeros) return;
  // Packed down the rows: a word holds the zero points of adjacent rows.
  const int64_t each = 32 / form.bits, words = (n + each - 1) / each;
  Tensor zeros = Tensor::zeros(DType::i32, {words, groups});
  int32_t* to = zeros.mutable_data<int32_t>().data();
  for (int64_t r = 0; r < n; ++r) {
    for (int64_t g = 0; g < groups; ++g) {
      const uint32_t zero = m.zero[static_cast<size_t>(r * groups + g)];
      int32_t& word = to[r / each * groups + g];
      word = static_cast<int32_t>(static_cast<uint32_t>(word) | zero << (r % each * form.bits));
    }
  }
  out.emplace_back(stem + ".weight_zero_point", std::move(zeros));
}

/// `head` is listed among the layers not quantized even if it shares the embedding's weights.
base::Json quantization_config(const DirectoryOptions& o, const Sorted& sorted, const std::string& head) {
  using base::Json;
  const bool is_float = o.to == DirectoryForm::fp8, is_row = o.to != DirectoryForm::int4 && o.group == 0;
  const int64_t bits = o.to == DirectoryForm::int4 ? 4 : 8;
  const char* type = is_float ? "float" : "int";
  Json weights = Json::object({{"num_bits", bits},
                               {"type", type},
                               {"symmetric", !o.has_zeros},
                               {"strategy", is_row ? "channel" : "group"},
                               {"group_size", is_row ? Json() : Json(group_of(o, 128))},
                               {"dynamic", false},
                               {"observer", "minmax"}});
  Json rows;
  if (!is_packed(o))
    rows = Json::object(
        {{"num_bits", 8}, {"type", type}, {"symmetric", true}, {"strategy", "token"}, {"dynamic", true}});
  Json group = Json::object({{"targets", Json::array({"Linear"})},
                             {"weights", std::move(weights)},
                             {"input_activations", std::move(rows)},
                             {"output_activations", Json()}});
  Json left = Json::array();
  if (!sorted.left.contains(head)) left.push_back(head);
  for (const auto& [stem, why] : sorted.left) left.push_back(stem);
  const char* format = is_packed(o) ? "pack-quantized" : is_float ? "float-quantized" : "int-quantized";
  return Json::object({{"quant_method", "compressed-tensors"},
                       {"format", format},
                       {"quantization_status", "compressed"},
                       {"config_groups", Json::object({{"group_0", std::move(group)}})},
                       {"ignore", std::move(left)},
                       {"kv_cache_scheme", Json()}});
}

/// Writes one file, or several with an index.
void write_files(const NamedTensors& tensors, const std::string& directory) {
  std::vector<NamedTensors> files(1);
  int64_t bytes = 0, all = 0;
  for (const auto& item : tensors) {
    if (bytes > 0 && bytes + item.second.bytes() > kFileBytes) {
      files.emplace_back();
      bytes = 0;
    }
    bytes += item.second.bytes();
    all += item.second.bytes();
    files.back().push_back(item);
  }
  const fs::path root(directory);
  if (files.size() == 1)
    return save_safetensors((root / "model.safetensors").string(), files[0], {{"format", "pt"}});
  base::Json places = base::Json::object();
  for (size_t i = 0; i < files.size(); ++i) {
    char name[64];
    std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", i + 1, files.size());
    save_safetensors((root / name).string(), files[i], {{"format", "pt"}});
    for (const auto& item : files[i]) places.set(item.first, name);
  }
  const base::Json index = base::Json::object(
      {{"metadata", base::Json::object({{"total_size", all}})}, {"weight_map", std::move(places)}});
  base::write_file_atomic((root / "model.safetensors.index.json").string(), index.dump({.indent = 2}) + "\n");
}

RoundedForm form_for(const DirectoryOptions& o, const Tensor& t) {
  return {.bits = o.to == DirectoryForm::int4 ? 4 : 8,
          .is_float = o.to == DirectoryForm::fp8,
          .group = group_of(o, t.dims()[1]),
          .has_zeros = o.has_zeros,
          .scale_type = t.dtype()};
}

int64_t bytes_of(const NamedTensors& tensors, size_t from) {
  int64_t bytes = 0;
  for (size_t i = from; i < tensors.size(); ++i) bytes += tensors[i].second.bytes();
  return bytes;
}

void check_options(const DirectoryOptions& o) {
  const bool fits = o.group == 0 || o.group == 32 || o.group == 64 || o.group == 128;
  base::require(fits, "groups of ", o.group, " weights, not 32, 64 or 128");
  if (o.to == DirectoryForm::fp8 && (o.group > 0 || o.has_zeros))
    base::fail_unsupported("8-bit floats have a scale for each row, no groups and no zero points");
}

}  // namespace

DirectoryPlan plan_directory(const std::string& directory, const DirectoryOptions& options) {
  check_options(options);
  const Sorted sorted = sort_layers(open(directory), options);
  DirectoryPlan plan;
  for (const auto& [name, layer] : sorted.layers) plan.layers.push_back(layer);
  plan.left.assign(sorted.left.begin(), sorted.left.end());
  return plan;
}

DirectoryReport write_quantized_directory(const std::string& from, const std::string& to,
                                          const DirectoryOptions& options, const MomentsOf& moments,
                                          base::ThreadPool& pool) {
  check_options(options);
  const Opened source = open(from);
  const Sorted sorted = sort_layers(source, options);
  DirectoryReport report;
  NamedTensors out;
  for (const Safetensors& file : source.files) {
    for (const auto& [name, t] : file.tensors()) {
      report.bytes_before += t.bytes();
      const auto at = sorted.layers.find(name);
      if (at == sorted.layers.end()) {
        out.emplace_back(name, t);
        if (const auto left = sorted.left.find(name.ends_with(kWeight) ? stem_of(name) : "");
            left != sorted.left.end())
          report.layers.push_back({.name = name,
                                   .rows = t.dims()[0],
                                   .depth = t.dims()[1],
                                   .bytes_before = t.bytes(),
                                   .bytes_after = t.bytes(),
                                   .why = left->second});
        continue;
      }
      const RoundedForm form = form_for(options, t);
      const size_t first = out.size();
      try {
        const Tensor wide = to_f32(t);
        const RoundedMatrix m =
            round_weights(wide.data<float>(), t.dims()[1], form, moments(at->second), pool);
        append(out, at->second, m, form, options);
        report.layers.push_back({.name = name,
                                 .rows = t.dims()[0],
                                 .depth = t.dims()[1],
                                 .bytes_before = t.bytes(),
                                 .bytes_after = bytes_of(out, first),
                                 .relative = m.relative,
                                 .largest = m.largest,
                                 .of_products = m.of_products});
      } catch (const base::Error& e) {
        throw e.with(base::concat("tensor '", name, "'"));
      }
    }
  }
  report.bytes_after = bytes_of(out, 0);
  base::Json config = source.config;
  config.set("quantization_config", quantization_config(options, sorted, source.form.decoder.names.head));
  fs::create_directories(to);
  copy_companions(from, to);
  write_files(out, to);
  base::write_file_atomic((fs::path(to) / "config.json").string(), config.dump({.indent = 2}) + "\n");
  return report;
}

std::string DirectoryReport::text() const {
  std::string text;
  char line[320];
  for (const QuantizedLayer& l : layers) {
    std::snprintf(line, sizeof line, "%-48s [%lld, %lld]  ", l.name.substr(0, 100).c_str(),
                  static_cast<long long>(l.rows), static_cast<long long>(l.depth));
    text += line;
    if (!l.why.empty()) {
      text += "stays: " + l.why + "\n";
      continue;
    }
    std::snprintf(line, sizeof line, "%lld -> %lld bytes  error %.5f, largest %.3g",
                  static_cast<long long>(l.bytes_before), static_cast<long long>(l.bytes_after), l.relative,
                  l.largest);
    text += line;
    if (l.of_products > 0) {
      std::snprintf(line, sizeof line, ", of products %.5f", l.of_products);
      text += line;
    }
    text += "\n";
  }
  std::snprintf(line, sizeof line, "%zu matrices, %.1f MB -> %.1f MB\n", layers.size(),
                static_cast<double>(bytes_before) / 1e6, static_cast<double>(bytes_after) / 1e6);
  return text + line;
}

}  // namespace trireme::model::hf
