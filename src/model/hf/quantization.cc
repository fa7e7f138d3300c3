// Reads from config.json in which way matrices are stored in few bits.
#include "model/hf/quantization.h"

#include <array>

#include "base/error.h"
#include "model/hf/config_reader.h"

namespace trireme::model::hf {
namespace {

/// The prefix of keys in messages.
constexpr const char* kKey = "quantization_config.";

[[noreturn]] void refuse(std::string_view key, const std::string& value, std::string_view known) {
  base::fail_unsupported("config.json: ", kKey, key, " is '", value.substr(0, 60), "'; known: ", known);
}

/// A word that must be one of a few; the first of them if it is absent.
std::string one_of(ConfigReader& in, std::string_view key, std::initializer_list<const char*> known) {
  const std::string value = in.text(key, *known.begin());
  std::string all;
  for (const char* word : known) {
    if (value == word) return value;
    all += std::string(all.empty() ? "" : ", ") + word;
  }
  refuse(key, value, all);
}

Quantization read_awq(ConfigReader& in) {
  Quantization q{.method = Quantization::Method::awq};
  one_of(in, "version", {"gemm", "GEMM"});
  const int64_t bits = in.positive("bits", in.positive("w_bit", 4));
  if (bits != 4) refuse("bits", std::to_string(bits), "4");
  if (!in.flag("zero_point", true)) refuse("zero_point", "false", "true");
  // Groups and exceptions are evident from the tensors; fused modules and kernels concern other programs.
  in.ignore({"group_size", "q_group_size", "modules_to_not_convert", "backend", "do_fuse", "fuse_max_seq_len",
             "modules_to_fuse", "exllama_config"});
  return q;
}

Quantization read_gptq(ConfigReader& in) {
  Quantization q{.method = Quantization::Method::gptq};
  const int64_t bits = in.positive("bits", 4);
  if (bits != 4 && bits != 8) refuse("bits", std::to_string(bits), "4, 8");
  const std::string key = in.has("checkpoint_format") ? "checkpoint_format" : "format";
  q.lacks_one = one_of(in, key, {"gptq", "gptq_v2"}) == "gptq";
  in.ignore({"format"});
  one_of(in, "pack_dtype", {"int32"});
  // These tell how weights were found and which kernels other programs use. Groups, symmetry, order and the
  // exceptions in `dynamic` are evident from the tensors.
  in.ignore({"group_size",
             "dynamic",
             "desc_act",
             "sym",
             "static_groups",
             "true_sequential",
             "damp_percent",
             "lm_head",
             "meta",
             "quantizer",
             "model_name_or_path",
             "model_file_base_name",
             "modules_in_block_to_quantize",
             "modules_to_not_convert",
             "dataset",
             "tokenizer",
             "use_exllama",
             "exllama_config",
             "use_cuda_fp16",
             "model_seqlen",
             "block_name_to_quantize",
             "module_name_preceding_first_block",
             "batch_size",
             "pad_token_id",
             "max_input_length",
             "cache_block_outputs",
             "backend",
             "act_group_aware",
             "mse",
             "damp_auto_increment",
             "hyb_act",
             "disable_exllama"});
  return q;
}

/// Reads one group of layers of compressed-tensors.
void read_group(const base::Json& json, const std::string& where, Quantization& q) {
  ConfigReader group(json, where);
  group.ignore({"targets", "input_activations", "format"});
  group.only("output_activations", nullptr);
  const base::Json* weights = group.find("weights");
  if (weights == nullptr) base::fail_unsupported("config.json: ", where, "weights is missing");
  ConfigReader in(*weights, where + "weights.");
  const std::string type = in.text("type", "int");
  const int64_t bits = in.positive("num_bits", 8);
  const bool is_known = (type == "int" && (bits == 4 || bits == 8)) || (type == "float" && bits == 8);
  if (!is_known)
    base::fail_unsupported("config.json: ", where, "weights are ", type.substr(0, 20), " of ", bits,
                           " bits; known: int of 4 or 8, float of 8");
  const std::string strategy = in.text("strategy", "tensor");
  if (strategy == "block") {
    const base::Json* block = in.find("block_structure");
    if (block == nullptr || !block->is_array() || block->size() != 2)
      base::fail_unsupported("config.json: ", where, "weights.block_structure is no pair of extents");
    const int64_t rows = block->at(size_t{0}).as_int(), columns = block->at(size_t{1}).as_int();
    base::require(rows > 0 && columns > 0, "config.json: blocks of ", rows, " by ", columns);
    if (q.block_rows != 0 && (q.block_rows != rows || q.block_columns != columns))
      base::fail_unsupported("config.json: blocks of several sizes");
    q.block_rows = rows;
    q.block_columns = columns;
  } else if (strategy != "tensor" && strategy != "channel" && strategy != "group") {
    base::fail_unsupported("config.json: ", where, "weights.strategy is '", strategy.substr(0, 40),
                           "'; known: tensor, channel, group, block");
  }
  in.only("dynamic", false);
  in.ignore({"symmetric", "group_size", "block_structure", "actorder", "observer", "observer_kwargs",
             "scale_dtype", "zp_dtype"});
  in.finish();
  group.finish();
}

Quantization read_compressed(ConfigReader& in) {
  Quantization q{.method = Quantization::Method::compressed};
  one_of(in, "format",
         {"pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "mixed-precision"});
  one_of(in, "quantization_status", {"compressed"});
  const base::Json* groups = in.find("config_groups");
  if (groups == nullptr || !groups->is_object() || groups->size() == 0)
    base::fail_unsupported("config.json: ", kKey, "config_groups is missing");
  for (const base::JsonMember& group : groups->as_object())
    read_group(group.value, base::concat(kKey, "config_groups.", group.key.substr(0, 40), "."), q);
  in.only("kv_cache_scheme", nullptr);
  for (const char* key : {"sparsity_config", "transform_config"}) {
    const base::Json* member = in.find(key);
    const bool is_dense = member != nullptr && member->is_object() && member->get_or("format", "") == "dense";
    if (member != nullptr && !is_dense && !(member->is_object() && member->size() == 0))
      base::fail_unsupported("config.json: ", kKey, key, " is ", member->dump().substr(0, 80));
  }
  in.ignore({"ignore", "global_compression_ratio", "version"});
  return q;
}

Quantization read_float8(ConfigReader& in) {
  Quantization q{.method = Quantization::Method::float8};
  one_of(in, "fmt", {"e4m3"});
  one_of(in, "activation_scheme", {"dynamic", "static"});
  one_of(in, "scale_fmt", {"float", "ue8m0"});
  if (const base::Json* block = in.find("weight_block_size")) {
    base::require(block->is_array() && block->size() == 2, "config.json: ", kKey,
                  "weight_block_size is no pair");
    q.block_rows = block->at(size_t{0}).as_int();
    q.block_columns = block->at(size_t{1}).as_int();
    base::require(q.block_rows > 0 && q.block_columns > 0, "config.json: blocks of ", q.block_rows, " by ",
                  q.block_columns);
  }
  in.ignore({"modules_to_not_convert", "ignored_layers", "dequantize"});
  return q;
}

/// The matrices of gpt-oss's experts; WeightMap::woven lists them.
Quantization read_mxfp4(ConfigReader& in) {
  in.only("dequantize", false);
  in.ignore({"modules_to_not_convert"});
  return {.method = Quantization::Method::mxfp4};
}

struct MethodRow {
  std::string_view name;
  Quantization (*read)(ConfigReader& in);
};
constexpr std::array<MethodRow, 5> kMethods{{{"awq", read_awq},
                                             {"gptq", read_gptq},
                                             {"compressed-tensors", read_compressed},
                                             {"fp8", read_float8},
                                             {"mxfp4", read_mxfp4}}};

}  // namespace

Quantization read_quantization(const base::Json& config) {
  const base::Json* json = config.find("quantization_config");
  if (json == nullptr || json->is_null()) json = config.find("compression_config");
  if (json == nullptr || json->is_null()) return {};
  ConfigReader in(*json, kKey);
  std::string known, method = in.text("quant_method", "");
  for (const MethodRow& row : kMethods) {
    if (row.name == method) {
      const Quantization q = row.read(in);
      in.finish();
      return q;
    }
    known += std::string(known.empty() ? "" : ", ") + std::string(row.name);
  }
  refuse("quant_method", method, known);
}

}  // namespace trireme::model::hf
