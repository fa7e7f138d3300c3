// Llama 1 to 3.x and SmolLM2 (Touvron et al. 2023), Mistral 7B (Jiang et al. 2023): the plain decoder.
#include "model/hf/forms/forms.h"

namespace trireme::model::hf {

Form llama_form(ConfigReader& in) {
  Form form{.decoder = read_decoder(in)};
  form.decoder.has_qkv_bias = form.decoder.has_out_bias = in.flag("attention_bias", false);
  form.decoder.has_mlp_bias = in.flag("mlp_bias", false);
  // Members that SmolLM2 writes and Transformers does not read.
  in.ignore({"is_llama_config", "rope_interleaved", "transformers.js_config"});
  return form;
}

Form mistral_form(ConfigReader& in) {
  Form form{.decoder = read_decoder(in)};
  const bool has_window = in.has("sliding_window"), has_types = in.has("layer_types");
  if (has_window || has_types) read_windows(in, form.decoder, [](size_t) { return true; });
  return form;
}

}  // namespace trireme::model::hf
