// The weights of a Hugging Face checkpoint under the names that our networks ask for.
#include "model/hf/checkpoint.h"

#include <cstring>
#include <filesystem>
#include <set>

#include "base/files/file.h"
#include "base/text/json.h"
#include "tensor/half.h"

namespace trireme::model::hf {
namespace {

namespace fs = std::filesystem;
using tensor::DType;
using tensor::Tensor;

constexpr const char* kWhole = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

/// `text` with the first `from` replaced; empty if there is none.
std::string replaced(const std::string& text, std::string_view from, std::string_view to) {
  const size_t at = text.find(from);
  if (at == std::string::npos) return {};
  return text.substr(0, at) + std::string(to) + text.substr(at + from.size());
}

/// Checkpoints converted from TensorFlow say gamma and beta.
std::string old_norm_name(const std::string& name) {
  if (name.ends_with("LayerNorm.weight")) return replaced(name, "LayerNorm.weight", "LayerNorm.gamma");
  if (name.ends_with("LayerNorm.bias")) return replaced(name, "LayerNorm.bias", "LayerNorm.beta");
  return {};
}

}  // namespace

const std::vector<Stacked>& stacked_weights() {
  static const std::vector<Stacked> list{
      {"attention.self.qkv", {"attention.self.query", "attention.self.key", "attention.self.value"}},
      {"attention.attention.qkv",
       {"attention.attention.query", "attention.attention.key", "attention.attention.value"}},
  };
  return list;
}

CheckpointParams::CheckpointParams(const std::string& directory, std::string prefix)
    : prefix_(std::move(prefix)) {
  const fs::path root(directory);
  if (base::file_exists((root / kWhole).string())) {
    files_.push_back(Safetensors::open((root / kWhole).string()));
    return;
  }
  const base::Json index = base::parse_json(base::read_file((root / kIndex).string()));
  std::set<std::string> names;
  for (const base::JsonMember& member : index.at("weight_map").as_object())
    names.insert(member.value.as_string());
  for (const std::string& name : names) files_.push_back(Safetensors::open(base::safe_join(directory, name)));
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
  return to_f32(*t);
}

Tensor CheckpointParams::get(const std::string& name, const tensor::Dims& dims, const Init&) {
  const auto check = [&](const Tensor& t) {
    base::require(t.dims() == dims, "tensor '", name, "' is ", t.type().to_string(), ", the config wants ",
                  tensor::to_string(dims));
    return t;
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
    return check(stack_rows(parts));
  }
  return check(need(name));
}

Tensor to_f32(const Tensor& t) {
  if (t.dtype() == DType::f32) return t;
  if (t.dtype() != DType::f16 && t.dtype() != DType::bf16) {
    base::fail_unsupported("weights of type ", tensor::name_of(t.dtype()));
  }
  Tensor out = Tensor::empty(DType::f32, t.dims());
  const auto* bits = reinterpret_cast<const uint16_t*>(t.raw());
  auto values = out.mutable_data<float>();
  const bool is_half = t.dtype() == DType::f16;
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = is_half ? tensor::f16_bits_to_f32(bits[i]) : tensor::bf16_bits_to_f32(bits[i]);
  }
  return out;
}

Tensor stack_rows(const std::vector<Tensor>& parts) {
  tensor::Dims dims = parts[0].dims();
  dims[0] = 0;
  for (const Tensor& t : parts) dims[0] += t.dims()[0];
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
