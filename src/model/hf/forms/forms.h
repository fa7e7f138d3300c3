// Forms of decoders in Hugging Face directories: how each reads config.json and names its weights.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "model/hf/checkpoint.h"
#include "model/hf/config_reader.h"
#include "model/zoo/decoder.h"

namespace trireme::model::hf {

/// What config.json says of a decoder.
struct Form {
  zoo::DecoderConfig decoder;
  WeightMap weights;  ///< where the checkpoint has others than the network
  Quantization quantization = {};
  std::string prefix = "model.";  ///< what names may have in front in a checkpoint or lack
};

/// One architecture: its name in config.json and its reader, which throws unsupported for options that the
/// network does not have.
struct FormRow {
  std::string_view type;
  Form (*read)(ConfigReader& config);
};
const std::vector<FormRow>& decoder_forms();

/// The form of a config.json; null for a model type of no decoder.
const FormRow* find_form(const base::Json& config);

/// Reads all of config.json by its form. Throws unsupported for what it does not know.
Form read_form(const FormRow& row, const base::Json& config);

Form llama_form(ConfigReader& in);
Form mistral_form(ConfigReader& in);
Form qwen2_form(ConfigReader& in);
Form qwen3_form(ConfigReader& in);
Form qwen3_moe_form(ConfigReader& in);
Form mixtral_form(ConfigReader& in);
Form phi3_form(ConfigReader& in);
Form gemma2_form(ConfigReader& in);
Form gemma3_form(ConfigReader& in);
Form gpt_neox_form(ConfigReader& in);
Form gptj_form(ConfigReader& in);
Form gpt_oss_form(ConfigReader& in);
Form olmo2_form(ConfigReader& in);
Form granite_form(ConfigReader& in);
Form stablelm_form(ConfigReader& in);
Form starcoder2_form(ConfigReader& in);
Form phi_form(ConfigReader& in);
Form cohere_form(ConfigReader& in);
Form opt_form(ConfigReader& in);
Form falcon_form(ConfigReader& in);
Form qwen2_moe_form(ConfigReader& in);

/// What sizes are called.
struct SizeKeys {
  const char *positions = "max_position_embeddings", *width = "hidden_size", *layers = "num_hidden_layers";
  const char *heads = "num_attention_heads", *kv_heads = "num_key_value_heads";
};

/// Sizes but that of feed-forward layers.
zoo::DecoderConfig read_sizes(ConfigReader& in, const SizeKeys& keys);

/// What most forms share: sizes, RMS norms, activation, tied head, rotary positions.
zoo::DecoderConfig read_decoder(ConfigReader& in);

/// Rotary positions of `rope_scaling`, `rope_parameters` and `rope_theta`; also how many channels rotate, and
/// the longest sequence where it follows from them. `usual_part`: the part of a head that rotates where
/// nothing says so.
void read_rotary(ConfigReader& in, zoo::DecoderConfig& decoder, double usual_part = 1);

/// One such object into `spec`. `positions`: max_position_embeddings, which LongRoPE shortens to the length
/// up to which its short factors hold.
void read_rotary(ConfigReader& rope, zoo::RotarySpec& spec, zoo::DecoderConfig& decoder);

/// `layer_types`, else `is_windowed(i)`: layers with a window of `sliding_window` keys.
void read_windows(ConfigReader& in, zoo::DecoderConfig& decoder, bool (*is_windowed)(size_t layer));

}  // namespace trireme::model::hf
