// Converts Hugging Face directories to GGUF conventions: names, order of rows, metadata.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <tuple>

#include "model/gguf/gguf_config.h"
#include "model/gguf/gguf_tokenizer.h"
#include "model/gguf/quantize.h"
#include "model/hf/directory.h"
#include "model/hf/forms/forms.h"
#include "tensor/absent.h"

namespace trireme::model::gguf {
namespace {

using tensor::Dims;
using tensor::GgufWriter;
using tensor::Tensor;
using zoo::DecoderConfig;
using zoo::RotaryKind;

/// Records the weights of a decoder in the order in which it asks for them.
class ListedParams : public ParamSource {
 public:
  Tensor get(const std::string& name, const Dims& dims, const Init&) override {
    names.push_back({name, dims});
    return tensor::absent(tensor::DType::f32, dims);
  }
  std::vector<std::pair<std::string, Dims>> names;
};

std::vector<std::pair<std::string, Dims>> weights_of(const DecoderConfig& config) {
  ListedParams params;
  zoo::decoder(config, params);
  return std::move(params.names);
}

std::string_view architecture_of_type(const std::string& model_type) {
  for (const auto& [type, name] : written_types()) {
    if (type == model_type) return name;
  }
  base::fail_unsupported("writing a model of type '", model_type, "' as GGUF");
}

/// Reorders the rows of each head: the two channels of a pair, stored in its two halves, become neighbours.
void interleave(std::vector<float>& values, int64_t heads, int64_t row) {
  const int64_t channels = static_cast<int64_t>(values.size()) / row / heads;
  std::vector<float> out(values.size());
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t i = 0; i < channels; ++i) {
      const int64_t from = h * channels + checkpoint_row(i, channels), to = h * channels + i;
      std::copy_n(values.data() + from * row, row, out.data() + to * row);
    }
  }
  values = std::move(out);
}

/// Reads the weights of a checkpoint in GGUF's form.
struct WeightReader {
  std::unique_ptr<hf::CheckpointParams> params;
  DecoderConfig config;
  std::string architecture;

  /// `ours`, `theirs`: the weight's name in the checkpoint's network and in the GGUF file.
  std::vector<float> values(const std::string& ours, const std::string& theirs, const Dims& dims) const {
    const Tensor t = params->get(ours, dims, Init::zeros());
    std::vector<float> values(t.data<float>().begin(), t.data<float>().end());
    const bool is_norm = theirs.find("norm.") != std::string::npos;
    if (is_norm && config.norm == zoo::NormKind::rms_offset) {
      for (float& v : values) v += 1;
    }
    const bool is_query = theirs.find(".attn_q.") != std::string::npos;
    const bool is_key = theirs.find(".attn_k.") != std::string::npos;
    if (turns_heads(architecture) && (is_query || is_key))
      interleave(values, is_query ? config.heads : config.kv_heads, dims.size() == 2 ? dims[1] : 1);
    return values;
  }
};

class Converter {
 public:
  explicit Converter(const std::string& directory)
      : directory_(directory), json_(hf::read_config_json(directory)) {
    const hf::FormRow* row = hf::find_form(json_);
    const std::string type = json_.get_or("model_type", "");
    name_ = architecture_of_type(type);
    form_ = hf::read_form(*row, json_);
    auto params = std::make_unique<hf::CheckpointParams>(directory, form_.prefix, form_.weights,
                                                         hf::StoredForms{.quantization = form_.quantization});
    reader_ = std::make_shared<const WeightReader>(WeightReader{std::move(params), form_.decoder, name_});
  }

  GgufSource run() {
    write_sizes();
    write_rotary();
    write_tensors();
    write_tokenizer(directory_, json_, c().vocabulary, source_.metadata);
    source_.owner = reader_;
    return std::move(source_);
  }

 private:
  const DecoderConfig& c() const { return form_.decoder; }
  std::string key(std::string_view name) const { return base::concat(name_, ".", name); }
  void integer(std::string_view name, int64_t value) {
    source_.metadata.set_integer(key(name), static_cast<uint32_t>(value));
  }
  void number(std::string_view name, double value) {
    source_.metadata.set_number(key(name), static_cast<float>(value));
  }

  void write_sizes() {
    source_.metadata.set_text("general.architecture", name_);
    source_.metadata.set_text("general.name", directory_.substr(directory_.find_last_of('/') + 1));
    integer("context_length", c().positions);
    integer("embedding_length", c().width);
    integer("block_count", static_cast<int64_t>(c().layers.size()));
    integer("feed_forward_length", c().inner);
    integer("attention.head_count", c().heads);
    integer("attention.head_count_kv", c().kv_heads);
    integer("attention.key_length", c().head_dim);
    integer("attention.value_length", c().head_dim);
    integer("vocab_size", c().vocabulary);
    const bool has_layer_norms = c().norm == zoo::NormKind::layer;
    number(has_layer_norms ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon",
           c().epsilon);
    write_scales();
    if (c().logit_cap != 0) number("final_logit_softcapping", c().logit_cap);
    if (c().score_cap != 0) number("attn_logit_softcapping", c().score_cap);
    write_windows();
    if (c().experts.count == 0) return;
    integer("expert_count", c().experts.count);
    integer("expert_used_count", c().experts.chosen);
    integer("expert_feed_forward_length", c().experts.inner);
    source_.metadata.set_flag(key("expert_weights_norm"), c().experts.is_normalized);
    if (c().experts.shared_inner > 0) integer("expert_shared_feed_forward_length", c().experts.shared_inner);
  }

  void write_scales() {
    if (c().query_scale != 0) number("attention.scale", c().query_scale);
    if (name_ == "granite") {
      number("embedding_scale", c().embedding_scale);
      number("residual_scale", c().residual_scale);
      number("logit_scale", 1 / c().logit_scale);
    } else if (c().logit_scale != 1) {
      number("logit_scale", c().logit_scale);
    }
    const bool is_serial = c().block == zoo::BlockKind::before;
    if (name_ == "falcon" && (is_serial || c().has_qkv_bias))
      base::fail_unsupported("writing Falcon with biases or branches one behind the other as GGUF");
    if (name_ == "stablelm")
      source_.metadata.set_flag(key("use_parallel_residual"), c().block == zoo::BlockKind::shared);
    const bool is_usual = c().experts.clamp == 7 && c().experts.slope == 1.702;
    if (c().experts.clamp != 0 && !is_usual)
      base::fail_unsupported("a gate clamped at another number than 7");
  }

  /// GGUF can only state that every n-th layer has no window; other arrangements are refused.
  void write_windows() {
    int64_t window = 0, every = 1;
    for (const zoo::DecoderLayer& layer : c().layers) window = std::max(window, layer.window);
    if (window == 0) return;
    for (size_t i = 0; i < c().layers.size(); ++i) {
      if (c().layers[i].window == 0 && every == 1) every = static_cast<int64_t>(i) + 1;
    }
    for (size_t i = 0; i < c().layers.size(); ++i) {
      const bool has_window = every == 1 || (static_cast<int64_t>(i) + 1) % every != 0;
      if (has_window != (c().layers[i].window > 0))
        base::fail_unsupported("layers with windows in another order than all but every n-th");
    }
    integer("attention.sliding_window", window);
    integer("attention.sliding_window_pattern", every);
  }

  void write_rotary() {
    const zoo::RotarySpec& s = c().rotary[0];
    number("rope.freq_base", s.theta);
    integer("rope.dimension_count", c().rotated == 0 ? c().head_dim : c().rotated);
    if (c().rotary.size() > 1) number("rope.freq_base_swa", c().rotary[1].theta);
    if (s.kind == RotaryKind::linear || s.kind == RotaryKind::yarn) {
      source_.metadata.set_text(key("rope.scaling.type"), s.kind == RotaryKind::yarn ? "yarn" : "linear");
      number("rope.scaling.factor", s.factor);
    }
    if (s.kind == RotaryKind::yarn) {
      integer("rope.scaling.original_context_length", s.original);
      number("rope.scaling.attn_factor", s.gain / zoo::yarn_gain(s.factor));
      number("rope.scaling.yarn_beta_fast", s.fast);
      number("rope.scaling.yarn_beta_slow", s.slow);
      if (s.is_rounded == c().has_sinks)
        base::fail_unsupported("yarn whose bounds are whole channels in gpt-oss, or are not elsewhere");
    }
    if (s.kind == RotaryKind::table) base::fail_unsupported("writing LongRoPE as GGUF");
    if (s.kind == RotaryKind::llama3) add_stretch(s);
  }

  /// GGUF stores Llama 3's factors of wavelengths as a tensor.
  void add_stretch(const zoo::RotarySpec& s) {
    const int64_t channels = c().rotated == 0 ? c().head_dim : c().rotated;
    const std::vector<double> stretched = zoo::rotary_frequencies(s, channels);
    const std::vector<double> plain = zoo::rotary_frequencies({.theta = s.theta}, channels);
    std::vector<float> factors;
    for (size_t i = 0; i < plain.size(); ++i) factors.push_back(static_cast<float>(plain[i] / stretched[i]));
    add("rope_freqs.weight", {static_cast<int64_t>(factors.size())}, [factors] { return factors; });
  }

  void add(std::string name, Dims dims, std::function<std::vector<float>()> values, std::string ours = {}) {
    source_.tensors.push_back(
        {std::move(name), std::move(dims), "f32", std::move(values), {}, std::move(ours)});
  }

  void write_tensors() {
    DecoderConfig theirs = c();
    theirs.names = gguf_names(theirs);
    const auto own = weights_of(c()), named = weights_of(theirs);
    for (size_t i = 0; i < own.size(); ++i) {
      const auto& [name, dims] = named[i];
      if ((name_ == "phi3" || name_ == "falcon") && joins(own, named, i)) continue;
      add(
          name, dims,
          [reader = reader_, ours = own[i].first, name = name, dims = dims] {
            return reader->values(ours, name, dims);
          },
          own[i].first);
    }
  }

  /// Joins the matrices that Phi-3 and Falcon store joined: the first part writes all, others are skipped.
  bool joins(const std::vector<std::pair<std::string, Dims>>& own,
             const std::vector<std::pair<std::string, Dims>>& named, size_t i) {
    const std::string& name = named[i].first;
    for (const auto& [first, whole, count] :
         {std::tuple{".attn_q.", ".attn_qkv.", size_t{3}}, std::tuple{".ffn_gate.", ".ffn_up.", size_t{2}}}) {
      const size_t at = name.find(first);
      if (at == std::string::npos) continue;
      Dims dims = named[i].second;
      for (size_t part = 1; part < count; ++part) dims[0] += named[i + part].second[0];
      std::vector<std::pair<std::string, Dims>> parts(own.begin() + static_cast<int64_t>(i),
                                                      own.begin() + static_cast<int64_t>(i + count));
      add(
          name.substr(0, at) + whole + name.substr(at + std::strlen(first)), dims,
          [reader = reader_, parts] {
            std::vector<float> all;
            for (const auto& [ours, shape] : parts) {
              const std::vector<float> values = reader->values(ours, "", shape);
              all.insert(all.end(), values.begin(), values.end());
            }
            return all;
          },
          own[i].first);
      return true;
    }
    return name.find(".attn_k.") != std::string::npos || name.find(".attn_v.") != std::string::npos ||
           (name_ == "phi3" && name.find(".ffn_up.") != std::string::npos);
  }

  std::string directory_;
  base::Json json_;
  std::string name_;
  hf::Form form_;
  std::shared_ptr<const WeightReader> reader_;
  GgufSource source_;
};

}  // namespace

GgufSource huggingface_source(const std::string& directory) { return Converter(directory).run(); }

}  // namespace trireme::model::gguf
