// The table of forms, and the reading that forms share.
#include "model/hf/forms/forms.h"

#include <algorithm>
#include <cmath>

namespace trireme::model::hf {
namespace {

using zoo::DecoderConfig;
using zoo::RotaryKind;
using zoo::RotarySpec;

constexpr int64_t kMostLayers = 1 << 16;

std::vector<double> numbers(ConfigReader& in, std::string_view key) {
  const base::Json* list = in.find(key);
  base::require(list != nullptr && list->is_array(), "config.json has no list ", key);
  std::vector<double> values;
  for (const base::Json& v : list->as_array()) values.push_back(v.as_double());
  return values;
}

/// The original length: a member beside the rotary parameters, else one in them, else the longest sequence.
int64_t original_length(ConfigReader& rope, const RotarySpec& s, const DecoderConfig& c) {
  const int64_t own = rope.positive("original_max_position_embeddings", c.positions);
  return s.original > 0 ? s.original : own;
}

void read_yarn(ConfigReader& rope, RotarySpec& s, const DecoderConfig& c) {
  s.kind = RotaryKind::yarn;
  s.original = original_length(rope, s, c);
  s.factor = rope.number("factor", static_cast<double>(c.positions) / static_cast<double>(s.original));
  s.fast = rope.number("beta_fast", 32);
  s.slow = rope.number("beta_slow", 1);
  s.is_rounded = rope.flag("truncate", true);
  const double all = rope.number("mscale_all_dim", 0), some = rope.number("mscale", 0);
  const bool has_both = all != 0 && some != 0;
  const double usual =
      has_both ? zoo::yarn_gain(s.factor, some) / zoo::yarn_gain(s.factor, all) : zoo::yarn_gain(s.factor);
  s.gain = rope.number("attention_factor", usual);
}

/// Only the short factors, which apply up to the original length: longer sequences are refused.
void read_longrope(ConfigReader& rope, RotarySpec& s, DecoderConfig& c) {
  s.kind = RotaryKind::table;
  s.original = original_length(rope, s, c);
  s.stretch = numbers(rope, "short_factor");
  rope.ignore({"long_factor"});
  const double factor =
      rope.number("factor", static_cast<double>(c.positions) / static_cast<double>(s.original));
  const double usual =
      factor <= 1 ? 1 : std::sqrt(1 + std::log(factor) / std::log(static_cast<double>(s.original)));
  s.gain = rope.number("attention_factor", usual);
  c.positions = std::min(c.positions, s.original);
}

}  // namespace

const std::vector<FormRow>& decoder_forms() {
  static const std::vector<FormRow> rows{{"llama", llama_form},
                                         {"mistral", mistral_form},
                                         {"qwen2", qwen2_form},
                                         {"qwen3", qwen3_form},
                                         {"qwen3_moe", qwen3_moe_form},
                                         {"mixtral", mixtral_form},
                                         {"phi3", phi3_form},
                                         {"gemma2", gemma2_form},
                                         {"gemma3_text", gemma3_form},
                                         {"gpt_neox", gpt_neox_form},
                                         {"gptj", gptj_form},
                                         {"gpt_oss", gpt_oss_form},
                                         {"olmo2", olmo2_form},
                                         {"granite", granite_form},
                                         {"stablelm", stablelm_form},
                                         {"starcoder2", starcoder2_form},
                                         {"phi", phi_form},
                                         {"cohere", cohere_form},
                                         {"opt", opt_form},
                                         {"falcon", falcon_form},
                                         {"qwen2_moe", qwen2_moe_form}};
  return rows;
}

const FormRow* find_form(const base::Json& config) {
  const std::string type = config.get_or("model_type", "");
  for (const FormRow& row : decoder_forms()) {
    if (row.type == type) return &row;
  }
  return nullptr;
}

Form read_form(const FormRow& row, const base::Json& config) {
  ConfigReader in(config);
  Form form = row.read(in);
  form.quantization = read_quantization(config);
  in.ignore({"quantization_config", "compression_config"});
  in.finish();
  form.decoder.name = std::string(row.type);
  return form;
}

DecoderConfig read_sizes(ConfigReader& in, const SizeKeys& keys) {
  DecoderConfig c;
  c.vocabulary = in.positive("vocab_size");
  c.positions = in.positive(keys.positions);
  c.width = in.positive(keys.width);
  const int64_t layers = in.positive(keys.layers);
  base::require(layers <= kMostLayers, "config.json: ", keys.layers, " is ", layers);
  c.layers.resize(static_cast<size_t>(layers));
  c.heads = in.positive(keys.heads);
  c.kv_heads = in.positive(keys.kv_heads, c.heads);
  if (!in.has("head_dim"))
    base::require(c.width % c.heads == 0, keys.width, " ", c.width, " is no multiple of ", c.heads, " heads");
  c.head_dim = in.positive("head_dim", c.width / c.heads);
  return c;
}

DecoderConfig read_decoder(ConfigReader& in) {
  DecoderConfig c = read_sizes(in, {});
  c.inner = in.positive("intermediate_size");
  c.epsilon = in.number("rms_norm_eps", 1e-6);
  c.is_tied = in.flag("tie_word_embeddings", false);
  c.activation = in.text("hidden_act", "silu");
  read_rotary(in, c);
  return c;
}

void read_rotary(ConfigReader& in, DecoderConfig& c, double usual_part) {
  RotarySpec& spec = c.rotary[0];
  spec.theta = in.number("rope_theta", 10000);
  spec.original = in.positive("original_max_position_embeddings", 0);
  double part = in.number("partial_rotary_factor", usual_part);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const base::Json* object = in.find(key);
    if (object == nullptr) continue;
    if (object->contains("full_attention") || object->contains("sliding_attention"))
      continue;  // given by kind of layer
    ConfigReader rope(*object, base::concat(key, "."));
    part = rope.number("partial_rotary_factor", part);
    read_rotary(rope, spec, c);
  }
  base::require(part > 0 && part <= 1, "config.json: partial_rotary_factor is ", part);
  c.rotated = static_cast<int64_t>(static_cast<double>(c.head_dim) * part);
}

void read_rotary(ConfigReader& rope, RotarySpec& s, DecoderConfig& c) {
  s.theta = rope.number("rope_theta", s.theta);
  std::string type = rope.text("type", "default");
  type = rope.text("rope_type", type.c_str());
  if (type == "default") {
    s.kind = RotaryKind::plain;
    rope.ignore({"factor", "original_max_position_embeddings"});
  } else if (type == "linear") {
    s.kind = RotaryKind::linear;
    s.factor = rope.number("factor");
    rope.ignore({"original_max_position_embeddings"});
  } else if (type == "dynamic") {
    // In this kind, wavelengths grow once a sequence exceeds the positions, which never happens here.
    s.kind = RotaryKind::plain;
    rope.ignore({"factor", "original_max_position_embeddings"});
  } else if (type == "llama3") {
    s.kind = RotaryKind::llama3;
    s.factor = rope.number("factor");
    s.low = rope.number("low_freq_factor");
    s.high = rope.number("high_freq_factor");
    s.original = original_length(rope, s, c);
  } else if (type == "yarn") {
    read_yarn(rope, s, c);
  } else if (type == "longrope" || type == "su") {
    read_longrope(rope, s, c);
  } else {
    base::fail_unsupported("config.json: rotary positions of type '", type.substr(0, 40), "'");
  }
  base::require(s.factor > 0, "config.json: rotary positions are stretched by ", s.factor);
  rope.finish();
}

void read_windows(ConfigReader& in, DecoderConfig& c, bool (*is_windowed)(size_t)) {
  const int64_t window = in.positive("sliding_window", 0);
  const base::Json* types = in.find("layer_types");
  if (types != nullptr)
    base::require(types->size() == c.layers.size(), "config.json: layer_types names ", types->size(), " of ",
                  c.layers.size(), " layers");
  for (size_t i = 0; i < c.layers.size(); ++i) {
    bool has_window = is_windowed(i);
    if (types != nullptr) {
      const std::string& type = types->at(i).as_string();
      has_window = type == "sliding_attention";
      if (!has_window && type != "full_attention")
        base::fail_unsupported("config.json: a layer of type '", type.substr(0, 40), "'");
    }
    base::require(!has_window || window > 0, "config.json has layers with a window, but no sliding_window");
    c.layers[i].window = has_window ? window : 0;
  }
}

}  // namespace trireme::model::hf
