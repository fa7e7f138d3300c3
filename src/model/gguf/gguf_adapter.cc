// Adapters of low rank for language models in GGUF files: names and rows of the checkpoint as the file has
// them.
#include "model/gguf/gguf_adapter.h"

#include <cstring>
#include <map>

#include "model/gguf/gguf_config.h"
#include "model/gguf/gguf_model.h"
#include "model/hf/forms/forms.h"

namespace trireme::model::gguf {
namespace {

using base::Json;
using zoo::DecoderNames;
using Name = std::string DecoderNames::*;

/// Where products stand in a layer: the places around them, and their own.
const std::vector<std::vector<Name>>& products() {
  using N = DecoderNames;
  static const std::vector<std::vector<Name>> list{
      {&N::attention, &N::q}, {&N::attention, &N::k}, {&N::attention, &N::v}, {&N::attention, &N::out},
      {&N::mlp, &N::gate},    {&N::mlp, &N::up},      {&N::mlp, &N::down}};
  return list;
}

std::string name_in(const DecoderNames& names, int64_t layer, const std::vector<Name>& product) {
  std::string name = names.body.empty() ? "" : names.body + ".";
  name += base::concat(names.layers, ".", layer);
  for (const Name place : product) {
    if (!(names.*place).empty()) name += "." + names.*place;
  }
  return name;
}

/// GPT-2, whose network of a directory is no decoder by description.
hf::Form gpt2_checkpoint(int64_t width) {
  hf::Form form;
  DecoderNames& n = form.decoder.names;
  n.body = "transformer";
  n.layers = "h";
  n.attention = "attn";
  n.q = "q";
  n.k = "k";
  n.v = "v";
  n.out = "c_proj";
  n.up = "c_fc";
  n.down = "c_proj";
  form.weights.joined = {{"attn.c_attn", {"attn.q", "attn.k", "attn.v"}, {width, width, width}}};
  return form;
}

/// The form of the checkpoints that files of this architecture are made of. What is asked of it are names and
/// what is joined, which follow from the sizes.
hf::Form checkpoint_form(const std::string& architecture, const Json& sizes) {
  const int64_t heads = sizes.at("heads").as_int(), width = sizes.at("width").as_int();
  if (architecture == "gpt2") return gpt2_checkpoint(width);
  const std::string type(checkpoint_type(architecture));
  const Json config = Json::object({{"model_type", type},
                                    {"vocab_size", 1},
                                    {"max_position_embeddings", 1},
                                    {"hidden_size", width},
                                    {"num_hidden_layers", sizes.at("layers").as_int()},
                                    {"num_attention_heads", heads},
                                    {"num_key_value_heads", sizes.at("kv_heads").as_int()},
                                    {"num_kv_heads", sizes.at("kv_heads").as_int()},
                                    {"head_dim", sizes.at("head_dim").as_int()},
                                    {"intermediate_size", sizes.at("inner").as_int()},
                                    {"new_decoder_architecture", true},
                                    {"sliding_window", 1},
                                    {"num_experts", 1},
                                    {"num_experts_per_tok", 1},
                                    {"moe_intermediate_size", 1},
                                    {"shared_expert_intermediate_size", 1}});
  hf::ConfigReader reader(config);
  return hf::find_form(config)->read(reader);
}

/// A product of the checkpoint in the file's network.
struct Product {
  std::string name;
  int64_t turned_heads = 0;  ///< above 0: rows of each of so many heads stand in the file's order
};

/// By the checkpoint's names.
std::map<std::string, Product> products_of(const DecoderNames& checkpoint, const std::string& architecture,
                                           const Json& sizes) {
  zoo::DecoderConfig file;
  file.name = architecture;
  const DecoderNames names = gguf_names(file);
  std::map<std::string, Product> found;
  for (int64_t layer = 0; layer < sizes.at("layers").as_int(); ++layer) {
    for (const std::vector<Name>& product : products()) {
      int64_t heads = 0;
      if (turns_heads(architecture) && product.back() == &DecoderNames::q) heads = sizes.at("heads").as_int();
      if (turns_heads(architecture) && product.back() == &DecoderNames::k)
        heads = sizes.at("kv_heads").as_int();
      found[name_in(checkpoint, layer, product)] = {name_in(names, layer, product), heads};
    }
  }
  return found;
}

/// Rows of `b` [heads * channels, rank] as the file has them.
tensor::Tensor turned(const tensor::Tensor& b, int64_t heads) {
  tensor::Tensor out = tensor::Tensor::empty(b.dtype(), b.dims());
  const int64_t channels = b.dims()[0] / heads, row_bytes = b.bytes() / b.dims()[0];
  for (int64_t row = 0; row < b.dims()[0]; ++row) {
    const int64_t from = row - row % channels + checkpoint_row(row % channels, channels);
    std::memcpy(out.mutable_raw() + row * row_bytes, b.raw() + from * row_bytes,
                static_cast<size_t>(row_bytes));
  }
  return out;
}

}  // namespace

hf::Adapter read_adapter(const std::string& directory, const hf::ModuleSizes& modules, const Json& config) {
  const std::string architecture = config.at(kArchitectureKey).as_string();
  const Json& sizes = config.at(kSizesKey);
  const hf::Form checkpoint = checkpoint_form(architecture, sizes);
  const std::map<std::string, Product> products = products_of(checkpoint.decoder.names, architecture, sizes);
  hf::ModuleSizes theirs;
  for (const auto& [name, product] : products) {
    if (const auto at = modules.find(product.name); at != modules.end()) theirs[name] = at->second;
  }
  hf::Adapter adapter = hf::read_adapter(directory, theirs, checkpoint.weights.joined);
  for (hf::AdapterPart& part : adapter.parts) {
    const Product& product = products.at(part.module);
    part.module = product.name;
    if (product.turned_heads > 0) part.b = turned(part.b, product.turned_heads);
  }
  return adapter;
}

}  // namespace trireme::model::gguf
