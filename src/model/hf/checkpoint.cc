// Provides the weights of a Hugging Face checkpoint under the names that the networks ask for.
#include "model/hf/checkpoint.h"

#include <cstring>
#include <filesystem>
#include <numeric>
#include <set>
#include <unordered_map>

#include "base/files/file.h"
#include "base/text/json.h"
#include "model/hf/stored_weights.h"
#include "model/hf/woven_weights.h"
#include "tensor/absent.h"
#include "tensor/blocks/block_format.h"
#include "tensor/half.h"
#include "tensor/small_float_math.h"

namespace trireme::model::hf {
namespace {

namespace fs = std::filesystem;
using tensor::DType;
using tensor::Tensor;

constexpr const char* kWhole = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr int64_t kLeastKept = 4096;  // fewest elements of a matrix that is kept in 16 bits

/// `text` with the first `from` replaced; empty if there is none.
std::string replaced(const std::string& text, std::string_view from, std::string_view to) {
  const size_t at = text.find(from);
  if (at == std::string::npos) return {};
  return text.substr(0, at) + std::string(to) + text.substr(at + from.size());
}

/// Checkpoints converted from TensorFlow use the names gamma and beta.
std::string old_norm_name(const std::string& name) {
  if (name.ends_with("LayerNorm.weight")) return replaced(name, "LayerNorm.weight", "LayerNorm.gamma");
  if (name.ends_with("LayerNorm.bias")) return replaced(name, "LayerNorm.bias", "LayerNorm.beta");
  return {};
}

int64_t rows_of(const Joined& j) { return std::accumulate(j.rows.begin(), j.rows.end(), int64_t{0}); }

/// The checkpoint's name for a part of a woven weight, without its ending; empty for another weight.
struct WovenName {
  std::string stem;
  bool is_bias = false;
};
WovenName woven_name(const std::string& ours, const Woven& w, size_t part) {
  for (const std::string_view end : {std::string_view(".weight"), std::string_view(".bias")}) {
    if (ours.ends_with(w.parts[part] + std::string(end)))
      return {replaced(ours, w.parts[part] + std::string(end), w.name), end == ".bias"};
  }
  return {};
}

/// Joins the parts of a weight, head by head.
Tensor join_parts(const std::vector<Tensor>& parts, const Joined& j) {
  std::vector<Tensor> rows;
  for (int64_t h = 0; h < j.heads; ++h) {
    for (size_t i = 0; i < parts.size(); ++i) {
      const int64_t own = j.rows[i] / j.heads;
      rows.push_back(parts[i].rows(h * own, (h + 1) * own));
    }
  }
  return stack_rows(rows);
}

}  // namespace

Tensor part_of(const Tensor& whole, const Joined& j, size_t i) {
  base::require(whole.rank() > 0 && whole.dims()[0] == rows_of(j), "tensor '", j.name, "' is ",
                whole.type().to_string(), ", the config wants ", rows_of(j), " rows");
  int64_t before = 0;  // rows of earlier parts, per head
  for (size_t p = 0; p < i; ++p) before += j.rows[p] / j.heads;
  const int64_t step = rows_of(j) / j.heads, own = j.rows[i] / j.heads;
  if (j.heads == 1) return whole.rows(before, before + own);
  std::vector<Tensor> rows;
  for (int64_t h = 0; h < j.heads; ++h)
    rows.push_back(whole.rows(h * step + before, h * step + before + own));
  return stack_rows(rows);
}

NamedTensors to_checkpoint(const NamedTensors& weights, const WeightMap& map) {
  std::unordered_map<std::string_view, const Tensor*> by_name;
  for (const auto& [name, t] : weights) by_name[name] = &t;
  const auto need = [&](const std::string& name) {
    const auto at = by_name.find(name);
    if (at == by_name.end()) base::fail(base::ErrorCode::not_found, "no weight '", name, "' to join");
    return *at->second;
  };
  NamedTensors out;
  for (const auto& [name, t] : weights) {
    bool is_done = false;
    for (const Joined& j : map.joined) {
      for (size_t i = 0; i < j.parts.size() && !is_done; ++i) {
        const std::string whole = replaced(name, j.parts[i], j.name);
        is_done = !whole.empty();
        if (!is_done || i > 0) continue;
        std::vector<Tensor> parts;
        for (const std::string& part : j.parts) parts.push_back(need(replaced(name, j.parts[0], part)));
        out.emplace_back(whole, join_parts(parts, j));
      }
    }
    for (const Numbered& n : map.numbered) {
      if (is_done || name.find(n.name) == std::string::npos) continue;
      is_done = true;
      const tensor::Dims each(t.dims().begin() + 1, t.dims().end());
      for (int64_t i = 0; i < n.count; ++i)
        out.emplace_back(replaced(name, n.name, base::concat(n.first, i, n.last)),
                         t.rows(i, i + 1).reshaped(each));
    }
    for (const Woven& w : map.woven) {
      for (size_t i = 0; i < w.parts.size() && !is_done; ++i) {
        const WovenName theirs = woven_name(name, w, i);
        is_done = !theirs.stem.empty();
        if (!is_done || i > 0) continue;
        std::vector<Tensor> parts;
        for (const std::string& part : w.parts) parts.push_back(need(replaced(name, w.parts[0], part)));
        out.emplace_back(theirs.stem + (theirs.is_bias ? "_bias" : ""), woven_whole(parts));
      }
    }
    if (!is_done) out.emplace_back(name, t);
  }
  return out;
}

const std::vector<Stacked>& stacked_weights() {
  static const std::vector<Stacked> list{
      {"attention.self.qkv", {"attention.self.query", "attention.self.key", "attention.self.value"}},
      {"attention.attention.qkv",
       {"attention.attention.query", "attention.attention.key", "attention.attention.value"}},
  };
  return list;
}

std::vector<Safetensors> open_checkpoint(const std::string& directory) {
  const fs::path root(directory);
  std::vector<Safetensors> files;
  if (base::file_exists((root / kWhole).string())) {
    files.push_back(Safetensors::open((root / kWhole).string()));
    return files;
  }
  const base::Json index = base::parse_json(base::read_file((root / kIndex).string()));
  std::set<std::string> names;
  for (const base::JsonMember& member : index.at("weight_map").as_object())
    names.insert(member.value.as_string());
  for (const std::string& name : names) files.push_back(Safetensors::open(base::safe_join(directory, name)));
  return files;
}

CheckpointParams::CheckpointParams(const std::string& directory, std::string prefix, WeightMap map,
                                   StoredForms forms)
    : prefix_(std::move(prefix)), map_(std::move(map)), forms_(forms) {
  if (forms.is_without_content && !has_checkpoint(directory)) {
    absent_ = std::make_unique<AbsentParams>();
    return;
  }
  files_ = open_checkpoint(directory);
  const bool is_plain = forms.quantization.method == Quantization::Method::none;
  for (Safetensors& file : files_) {
    if (forms.is_without_content && is_plain) file.drop_content();
  }
}

const Tensor* CheckpointParams::find_exact(const std::string& name) const {
  for (const Safetensors& file : files_) {
    if (const Tensor* t = file.find(name)) return t;
  }
  return nullptr;
}

const Tensor* CheckpointParams::find(const std::string& name) const {
  const std::string other = name.starts_with(prefix_) ? name.substr(prefix_.size()) : prefix_ + name;
  for (const std::string& known : {name, other, old_norm_name(name), old_norm_name(other)}) {
    if (known.empty()) continue;
    if (const Tensor* t = find_exact(known)) return t;
  }
  return nullptr;
}

Tensor CheckpointParams::need(const std::string& name) const {
  const Tensor* t = find(name);
  if (t == nullptr) base::fail(base::ErrorCode::not_found, "the checkpoint has no tensor '", name, "'");
  Tensor wide = to_f32(*t);
  if (wide.raw() != t->raw() && !tensor::is_absent(*t)) release(*t);
  return wide;
}

void CheckpointParams::release(const Tensor& read) const {
  for (const Safetensors& file : files_)
    file.file()->release_pages({read.raw(), static_cast<size_t>(read.bytes())});
}

std::vector<std::shared_ptr<const base::MappedFile>> CheckpointParams::files() const {
  std::vector<std::shared_ptr<const base::MappedFile>> mapped;
  for (const Safetensors& file : files_) mapped.push_back(file.file());
  return mapped;
}

const StoredParam& CheckpointParams::stored_whole(const std::string& name, int64_t k) {
  if (last_.first == name) return last_.second;
  StoredParam made;
  constexpr std::string_view kWeight = ".weight";
  if (name.ends_with(kWeight)) {
    const auto by_name = [this](const std::string& wanted) { return find(wanted); };
    const std::string stem = name.substr(0, name.size() - kWeight.size());
    made = stored_weight(by_name, forms_.quantization, stem, k);
    for (const char* codes : {".qweight", ".weight_packed"}) {
      if (const Tensor* t = made.data.defined() ? find(stem + codes) : nullptr) release(*t);
    }
  }
  const Tensor* t = made.data.defined() ? nullptr : find(name);
  const bool is_half = t != nullptr && (t->dtype() == DType::bf16 || t->dtype() == DType::f16);
  if (is_half && forms_.keeps_halves && t->rank() == 2 && k % 32 == 0 && t->elements() >= kLeastKept) {
    made = {.data = *t, .from = base::concat(tensor::name_of(t->dtype()))};
  } else if (!made.data.defined()) {
    made = {.data = need(name)};
  }
  last_ = {name, std::move(made)};
  return last_.second;
}

StoredParam CheckpointParams::stacked(const Numbered& n, const std::string& name, int64_t k) {
  std::vector<StoredParam> each;
  for (int64_t i = 0; i < n.count; ++i)
    each.push_back(stored_whole(replaced(name, n.name, base::concat(n.first, i, n.last)), k));
  const auto join = [&](Tensor StoredParam::*member) {
    std::vector<Tensor> parts;
    for (const StoredParam& p : each) parts.push_back(p.*member);
    const Tensor& first = parts[0];
    for (const Tensor& t : parts) {
      base::require(t.defined() == first.defined() && t.dtype() == first.dtype() &&
                        t.dims() == first.dims() && t.rank() == first.rank(),
                    "of the tensors of '", name, "' one is ", t.type().to_string(), ", another ",
                    first.type().to_string());
    }
    return first.defined() ? stack_rows(parts) : Tensor();
  };
  // If only some experts have zero points, those of the others are set to the middle of the codes.
  const bool has_zeros =
      std::any_of(each.begin(), each.end(), [](const StoredParam& p) { return p.zero.defined(); });
  for (StoredParam& p : each) {
    base::require(p.bits == each[0].bits && p.group == each[0].group, "experts of '", name,
                  "' are stored in several ways");
    if (p.order.defined())
      base::fail_unsupported("experts '", name, "' whose columns are stored in an order of their own");
    if (!has_zeros || p.zero.defined()) continue;
    p.zero = Tensor::zeros(DType::i8, p.scale.dims());
    std::fill_n(p.zero.mutable_data<int8_t>().data(), p.zero.elements(), p.bits == 8 ? int8_t{0} : int8_t{8});
  }
  StoredParam all{.bits = each[0].bits, .group = each[0].group, .from = each[0].from};
  all.data = join(&StoredParam::data);
  all.scale = join(&StoredParam::scale);
  all.zero = join(&StoredParam::zero);
  return all;
}

StoredParam CheckpointParams::unwoven(const Woven& w, size_t part, const std::string& stem,
                                      bool is_bias) const {
  const Tensor* codes = is_bias ? nullptr : find(stem + "_blocks");
  if (codes == nullptr)
    return {.data = unwoven_part(need(stem + (is_bias ? "_bias" : "")), part, w.parts.size(), stem)};
  const Tensor* scales = find(stem + "_scales");
  base::require(scales != nullptr, "the checkpoint has no tensor '", stem, "_scales'");
  return unwoven_blocks(*codes, *scales, part, w.parts.size(), stem);
}

StoredParam CheckpointParams::stored_mapped(const std::string& name, int64_t k) {
  for (const Woven& w : map_.woven) {
    for (size_t i = 0; i < w.parts.size(); ++i) {
      const WovenName theirs = woven_name(name, w, i);
      if (!theirs.stem.empty()) return unwoven(w, i, theirs.stem, theirs.is_bias);
    }
  }
  for (const Joined& j : map_.joined) {
    for (size_t i = 0; i < j.parts.size(); ++i) {
      const std::string whole = replaced(name, j.parts[i], j.name);
      if (whole.empty()) continue;
      StoredParam part = stored_whole(whole, k);
      for (Tensor* t : {&part.data, &part.scale, &part.zero}) {
        if (t->defined()) *t = part_of(*t, j, i);
      }
      return part;
    }
  }
  for (const Numbered& n : map_.numbered) {
    if (name.find(n.name) != std::string::npos) return stacked(n, name, k);
  }
  return stored_whole(name, k);
}

StoredParam CheckpointParams::stored(const std::string& name, const tensor::Dims& dims, const Init& init) {
  if (absent_ != nullptr) return {.data = absent_->get(name, dims, init)};
  const auto check = [&](const Tensor& t, const tensor::Dims& wanted) {
    base::require(t.dims() == wanted, "tensor '", name, "' is ", t.type().to_string(), ", the config wants ",
                  tensor::to_string(wanted));
  };
  for (const Stacked& s : stacked_weights()) {
    if (replaced(name, s.name, "").empty() || has(name)) continue;
    std::vector<Tensor> parts;
    for (const std::string& part : s.parts) parts.push_back(need(replaced(name, s.name, part)));
    for (const Tensor& part : parts) {
      base::require(part.rank() == dims.size() &&
                        std::equal(part.dims().begin() + 1, part.dims().end(), dims.begin() + 1),
                    "a part of tensor '", name, "' is ", part.type().to_string(),
                    ", the config wants rows of ", tensor::to_string(dims));
    }
    StoredParam all{.data = stack_rows(parts)};
    check(all.data, dims);
    return all;
  }
  const int64_t k = dims.empty() ? 0 : dims.back();
  StoredParam found = stored_mapped(name, k);
  if (found.is_plain()) {
    if (found.data.elements() == tensor::element_count(dims) && found.data.rank() + 1 == dims.size())
      found.data = found.data.reshaped(dims);
    check(found.data, dims);
    return found;
  }
  int64_t width = found.data.dtype() == DType::u8 ? k * found.bits / 8 : k;
  if (!found.format.empty()) width = tensor::need_block_format(found.format).row_bytes(k);
  check(found.data, {k == 0 ? 0 : tensor::element_count(dims) / k, width});
  return found;
}

Tensor CheckpointParams::get(const std::string& name, const tensor::Dims& dims, const Init& init) {
  const StoredParam found = stored(name, dims, init);
  return found.is_plain() ? found.data : floats_of(found).reshaped(dims);
}

Tensor to_f32(const Tensor& t) {
  if (t.dtype() == DType::f32) return t;
  const bool is_half = t.dtype() == DType::f16, is_power = t.dtype() == DType::f8e8m0;
  if (!is_half && !is_power && t.dtype() != DType::bf16)
    base::fail_unsupported("weights of type ", tensor::name_of(t.dtype()));
  if (tensor::is_absent(t)) return tensor::absent(DType::f32, t.dims());
  Tensor out = Tensor::empty(DType::f32, t.dims());
  const auto* bits = reinterpret_cast<const uint16_t*>(t.raw());
  auto values = out.mutable_data<float>();
  for (size_t i = 0; i < values.size(); ++i) {
    if (is_power) {
      values[i] = tensor::decode_small_float(t.dtype(), std::to_integer<uint8_t>(t.raw()[i]));
    } else {
      values[i] = is_half ? tensor::f16_bits_to_f32(bits[i]) : tensor::bf16_bits_to_f32(bits[i]);
    }
  }
  return out;
}

Tensor stack_rows(const std::vector<Tensor>& parts) {
  tensor::Dims dims = parts[0].dims();
  dims[0] = 0;
  for (const Tensor& t : parts) dims[0] += t.dims()[0];
  if (tensor::has_absent(parts)) return tensor::absent(parts[0].dtype(), dims);
  Tensor out = Tensor::empty(parts[0].dtype(), dims);
  std::byte* at = out.mutable_raw();
  for (const Tensor& t : parts) {
    std::memcpy(at, t.raw(), static_cast<size_t>(t.bytes()));
    at += t.bytes();
  }
  return out;
}

bool has_checkpoint(const std::string& directory) {
  const fs::path root(directory);
  return base::file_exists((root / kWhole).string()) || base::file_exists((root / kIndex).string());
}

int64_t need_positive(const base::Json& config, std::string_view key) {
  const int64_t value = config.at(key).as_int();
  base::require(value > 0 && value < (int64_t{1} << 31), "config.json: ", key, " is ", value);
  return value;
}

int64_t class_count(const base::Json& config) {
  const base::Json* names = config.find("id2label");
  return names != nullptr && names->is_object() ? static_cast<int64_t>(names->size())
                                                : config.get_or("num_labels", int64_t{2});
}

}  // namespace trireme::model::hf
