// Reads the description of a decoder from the metadata of a GGUF file. Keys: ARCHITECTURE.name.
#include "model/gguf/gguf_config.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace trireme::model::gguf {
namespace {

using tensor::GgufFile;
using tensor::GgufTensor;
using zoo::DecoderConfig;
using zoo::RotaryKind;
using zoo::RotarySpec;

constexpr int64_t kMostLayers = 1 << 16;

/// One architecture of GGUF. The presence of tensors tells the rest: biases, norms of heads, a separate
/// output head, experts.
struct Architecture {
  std::string_view name;
  bool is_interleaved = false;  ///< pairs of rotating channels are neighbours
  bool has_layer_norms = false;
  bool is_gemma = false;     ///< norms around branches, scaled embedding, tanh-GELU
  bool is_plain = false;     ///< feed-forward layers without a gate
  int64_t window_every = 1;  ///< of so many layers one has no window; 1: all have it
  const char* activation = "silu";
  bool is_parallel = false;     ///< branches side by side, by one norm unless there are two
  bool divides_logits = false;  ///< logit_scale divides
  bool is_normalized = true;    ///< shares of chosen experts, where no key says so
};

constexpr Architecture kArchitectures[] = {
    {.name = "llama", .is_interleaved = true},
    {.name = "qwen2"},
    {.name = "qwen3"},
    {.name = "qwen3moe"},
    {.name = "phi3"},
    {.name = "gemma2", .is_gemma = true, .window_every = 2, .activation = "gelu_pytorch_tanh"},
    {.name = "gemma3", .is_gemma = true, .window_every = 6, .activation = "gelu_pytorch_tanh"},
    {.name = "gpt2", .has_layer_norms = true, .is_plain = true, .activation = "gelu_new"},
    {.name = "gptneox", .has_layer_norms = true, .is_plain = true, .activation = "gelu"},
    {.name = "olmo2"},
    {.name = "granite", .is_interleaved = true, .divides_logits = true},
    {.name = "stablelm", .has_layer_norms = true},
    {.name = "starcoder2", .has_layer_norms = true, .is_plain = true, .activation = "gelu_pytorch_tanh"},
    {.name = "phi2",
     .has_layer_norms = true,
     .is_plain = true,
     .activation = "gelu_new",
     .is_parallel = true},
    {.name = "command-r", .is_interleaved = true, .has_layer_norms = true, .is_parallel = true},
    {.name = "falcon", .has_layer_norms = true, .is_plain = true, .activation = "gelu", .is_parallel = true},
    {.name = "qwen2moe", .is_normalized = false},
    {.name = "gpt-oss", .window_every = 2},
};

const Architecture& architecture_of(const GgufFile& file) {
  const std::string_view name = file.metadata().text("general.architecture");
  std::string known;
  for (const Architecture& a : kArchitectures) {
    if (a.name == name) return a;
    known += (known.empty() ? "" : ", ") + std::string(a.name);
  }
  base::fail_unsupported("GGUF architecture '", name.substr(0, 40), "'; supported: ", known);
}

class Reader {
 public:
  explicit Reader(const GgufFile& file) : file_(file), a_(architecture_of(file)) {}

  GgufDecoder read() {
    refuse_others();
    read_sizes();
    read_blocks();
    read_rotary();
    read_windows();
    read_experts();
    d_.config.names = gguf_names(d_.config);
    join();
    return std::move(d_);
  }

 private:
  std::string key(std::string_view name) const { return base::concat(a_.name, ".", name); }
  bool has_key(std::string_view name) const { return file_.metadata().has(key(name)); }
  int64_t positive(std::string_view name) const {
    const int64_t value = file_.metadata().integer(key(name));
    base::require(value > 0 && value < (int64_t{1} << 31), "metadata '", key(name), "' is ", value);
    return value;
  }
  int64_t positive(std::string_view name, int64_t otherwise) const {
    return has_key(name) ? positive(name) : otherwise;
  }
  double number(std::string_view name, double otherwise) const {
    return file_.metadata().number(key(name), otherwise);
  }
  const GgufTensor* tensor(std::string_view name) const { return file_.find(name); }
  const GgufTensor* first(std::string_view name) const { return tensor(base::concat("blk.0.", name)); }

  /// Refuses keys that change the computation in a way that the network here does not implement.
  void refuse_others() const {
    for (const char* name :
         {"attention.max_alibi_bias", "attention.clamp_kqv", "expert_weights_scale",
          "leading_dense_block_count", "ssm.state_size", "attention.q_lora_rank", "attention.kv_lora_rank"}) {
      if (has_key(name) && number(name, 0) != 0) base::fail_unsupported("metadata '", key(name), "'");
    }
    if (number("expert_shared_count", 0) != 0 && a_.name != "qwen2moe")
      base::fail_unsupported("metadata '", key("expert_shared_count"), "'");
  }

  void read_sizes() {
    DecoderConfig& c = d_.config;
    c.name = std::string(a_.name);
    c.positions = positive("context_length");
    c.width = positive("embedding_length");
    const int64_t layers = positive("block_count");
    base::require(layers <= kMostLayers, "metadata '", key("block_count"), "' is ", layers);
    c.layers.resize(static_cast<size_t>(layers));
    c.heads = positive("attention.head_count");
    c.kv_heads = positive("attention.head_count_kv", c.heads);
    base::require(has_key("attention.key_length") || c.width % c.heads == 0, "a width of ", c.width, " over ",
                  c.heads, " heads");
    c.head_dim = positive("attention.key_length", c.width / c.heads);
    if (positive("attention.value_length", c.head_dim) != c.head_dim)
      base::fail_unsupported("values of another width than keys");
    c.inner = positive("feed_forward_length");
    c.epsilon = a_.has_layer_norms ? number("attention.layer_norm_epsilon", 1e-5)
                                   : number("attention.layer_norm_rms_epsilon", 1e-6);
    const GgufTensor* words = tensor("token_embd.weight");
    base::require(words != nullptr && words->dims.size() == 2, "the file has no matrix token_embd.weight");
    c.vocabulary = words->dims[0];
    c.is_tied = tensor("output.weight") == nullptr;
  }

  void read_blocks() {
    DecoderConfig& c = d_.config;
    c.norm = a_.has_layer_norms ? zoo::NormKind::layer : zoo::NormKind::rms;
    c.activation = a_.activation;
    c.mlp = a_.is_plain ? zoo::MlpKind::plain : zoo::MlpKind::gated;
    c.has_qkv_bias = first("attn_q.bias") != nullptr || first("attn_qkv.bias") != nullptr;
    c.has_out_bias = first("attn_output.bias") != nullptr;
    c.has_mlp_bias = first("ffn_down.bias") != nullptr;
    if (const GgufTensor* norm = first("attn_q_norm.weight")) {
      const bool is_vector = norm->dims.size() == 1;
      c.has_head_norms = is_vector && norm->dims[0] == c.head_dim;
      c.has_whole_norms = !c.has_head_norms && is_vector && norm->dims[0] == c.heads * c.head_dim;
      if (!c.has_head_norms && !c.has_whole_norms) base::fail_unsupported("norms of queries (attn_q_norm)");
    }
    c.has_norm_bias = tensor("output_norm.bias") != nullptr;
    c.has_head_bias = tensor("output.bias") != nullptr;
    c.has_sinks = first("attn_sinks.weight") != nullptr;
    read_places();
    c.embedding_scale = number("embedding_scale", 1);
    c.residual_scale = number("residual_scale", 1);
    c.logit_scale = number("logit_scale", 1);
    base::require(c.logit_scale > 0, "metadata '", key("logit_scale"), "' is ", c.logit_scale);
    if (a_.divides_logits) c.logit_scale = 1 / c.logit_scale;
    c.query_scale = number("attention.scale", 0);
    if (!a_.is_gemma) return;
    c.block = zoo::BlockKind::around;
    c.embedding_scale = std::sqrt(static_cast<double>(c.width));
    c.logit_cap = number("final_logit_softcapping", 0);
    c.score_cap = number("attn_logit_softcapping", 0);
    // The 27B models divide scores by the root of width / heads, which differs from the channels of their
    // heads. Files only show this by the number of layers.
    const bool is_27b =
        (a_.name == "gemma2" && c.layers.size() == 46) || (a_.name == "gemma3" && c.layers.size() == 62);
    if (is_27b && c.query_scale == 0)
      c.query_scale = 1 / std::sqrt(static_cast<double>(c.width) / static_cast<double>(c.heads));
  }

  /// Determines where blocks normalise.
  void read_places() {
    DecoderConfig& c = d_.config;
    const bool has_two = first("ffn_norm.weight") != nullptr || first("attn_norm_2.weight") != nullptr;
    const bool says_so = file_.metadata().flag(key("use_parallel_residual"), false);
    if (a_.is_parallel || says_so) c.block = has_two ? zoo::BlockKind::parallel : zoo::BlockKind::shared;
    if (a_.name == "stablelm" && has_two) c.block = zoo::BlockKind::before;
    if (first("attn_norm.weight") == nullptr && first("post_attention_norm.weight") != nullptr)
      c.block = zoo::BlockKind::after;
  }

  void read_rotary() {
    DecoderConfig& c = d_.config;
    if (a_.name == "gpt2") return c.rotary.clear();
    c.is_interleaved = a_.is_interleaved;
    c.rotated = positive("rope.dimension_count", c.head_dim);
    RotarySpec& s = c.rotary[0];
    s.theta = number("rope.freq_base", 10000);
    s.original = positive("rope.scaling.original_context_length", c.positions);
    s.factor = number("rope.scaling.factor", number("rope.scale_linear", 1));
    s.gain = number("rope.scaling.attn_factor", 1);
    std::string_view type =
        file_.metadata().text(key("rope.scaling.type"), s.factor == 1 ? "none" : "linear");
    if (const GgufTensor* stretch = stretches()) {
      s.kind = RotaryKind::table;
      s.stretch = floats(*stretch);
      type = "none";
      if (stretch->name.find("short") != std::string::npos) c.positions = std::min(c.positions, s.original);
    }
    if (type == "linear" && s.factor != 1) {
      s.kind = RotaryKind::linear;
    } else if (type == "yarn") {
      s.kind = RotaryKind::yarn;
      s.gain *= zoo::yarn_gain(s.factor);
      s.fast = number("rope.scaling.yarn_beta_fast", 32);
      s.slow = number("rope.scaling.yarn_beta_slow", 1);
      s.is_rounded = a_.name != "gpt-oss";  // files do not state it
    } else if (type != "none" && type != "linear" && type != "longrope") {
      base::fail_unsupported("rotary positions of type '", type.substr(0, 40), "'");
    }
    if (c.name != "gemma3") return;
    c.rotary.push_back({.theta = number("rope.freq_base_swa", 10000)});
  }

  /// Factors of wavelengths: those of Llama 3, or those of LongRoPE up to the original length.
  const GgufTensor* stretches() const {
    const GgufTensor* own = tensor("rope_freqs.weight");
    return own != nullptr ? own : tensor("rope_factors_short.weight");
  }

  static std::vector<double> floats(const GgufTensor& t) {
    base::require(t.type->name == "f32" && t.dims.size() == 1, "tensor '", t.name, "' is no vector of f32");
    std::vector<double> values(static_cast<size_t>(t.dims[0]));
    for (size_t i = 0; i < values.size(); ++i) {
      float value = 0;
      std::memcpy(&value, t.bytes.data() + 4 * i, 4);
      base::require(value > 0, "a factor of tensor '", t.name, "' is ", value);
      values[i] = value;
    }
    return values;
  }

  void read_windows() {
    DecoderConfig& c = d_.config;
    // Files of Phi-4 state a window of 0: none.
    const int64_t window =
        number("attention.sliding_window", 0) == 0 ? 0 : positive("attention.sliding_window");
    if (has_key("attention.sliding_window_pattern") &&
        file_.metadata().need(key("attention.sliding_window_pattern")).is_array)
      base::fail_unsupported("metadata '", key("attention.sliding_window_pattern"), "' by layer");
    const int64_t every = positive("attention.sliding_window_pattern", a_.window_every);
    for (size_t i = 0; i < c.layers.size() && window > 0; ++i) {
      const bool has_window = every == 1 || (static_cast<int64_t>(i) + 1) % every != 0;
      c.layers[i].window = has_window ? window : 0;
      if (c.rotary.size() > 1) c.layers[i].rotary = has_window ? 1 : 0;
    }
  }

  void read_experts() {
    DecoderConfig& c = d_.config;
    if (!has_key("expert_count") || file_.metadata().integer(key("expert_count")) == 0) return;
    c.experts.count = positive("expert_count");
    c.experts.chosen = positive("expert_used_count");
    c.experts.inner = positive("expert_feed_forward_length", c.inner);
    c.experts.is_normalized = file_.metadata().flag(key("expert_weights_norm"), a_.is_normalized);
    if (a_.name == "gpt-oss") c.experts.clamp = 7;
    for (size_t i = 0; i < c.layers.size(); ++i) {
      const auto has = [&](std::string_view name) {
        return tensor(base::concat("blk.", i, ".", name)) != nullptr;
      };
      c.layers[i].has_experts = has("ffn_gate_exps.weight");
      if (has("ffn_gate_exps.bias")) c.experts.has_bias = true;
      if (has("ffn_gate_shexp.weight"))  // the first layer may be dense
        c.experts.shared_inner = positive("expert_shared_feed_forward_length", c.inner);
    }
  }

  void join() {
    const DecoderConfig& c = d_.config;
    const int64_t q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
    if (first("attn_qkv.weight") != nullptr)
      d_.joined.push_back({"attn_qkv", {"attn_q", "attn_k", "attn_v"}, {q, kv, kv}});
    if (c.mlp == zoo::MlpKind::gated && first("ffn_gate.weight") == nullptr &&
        first("ffn_up.weight") != nullptr)
      d_.joined.push_back({"ffn_up", {"ffn_gate", "ffn_up"}, {c.inner, c.inner}});
  }

  const GgufFile& file_;
  const Architecture& a_;
  GgufDecoder d_;
};

}  // namespace

zoo::DecoderNames gguf_names(const zoo::DecoderConfig& config) {
  zoo::DecoderNames n{.body = "", .embedding = "token_embd", .positions = "position_embd", .layers = "blk"};
  n.attention = n.mlp = n.experts = "";
  n.q = "attn_q";
  n.k = "attn_k";
  n.v = "attn_v";
  n.out = "attn_output";
  n.q_norm = "attn_q_norm";
  n.k_norm = "attn_k_norm";
  n.gate = "ffn_gate";
  n.up = "ffn_up";
  n.down = "ffn_down";
  n.router = "ffn_gate_inp";
  n.expert_gate = "ffn_gate_exps";
  n.expert_up = "ffn_up_exps";
  n.expert_down = "ffn_down_exps";
  n.sinks = "attn_sinks.weight";
  n.shared_expert = "";
  n.shared_router = "ffn_gate_inp_shexp";
  n.shared_gate = "ffn_gate_shexp";
  n.shared_up = "ffn_up_shexp";
  n.shared_down = "ffn_down_shexp";
  n.norm_before_attention = "attn_norm";
  n.norm_after_attention = "post_attention_norm";
  n.norm_before_mlp = config.has_sinks ? "post_attention_norm" : "ffn_norm";
  if (config.name == "falcon" && config.block == zoo::BlockKind::parallel) {
    n.norm_before_attention = "attn_norm_2";
    n.norm_before_mlp = "attn_norm";
  }
  n.norm_after_mlp = "post_ffw_norm";
  n.last_norm = "output_norm";
  n.head = "output";
  return n;
}

const std::vector<CheckpointType>& written_types() {
  static const std::vector<CheckpointType> rows{{"llama", "llama"},        {"mistral", "llama"},
                                                {"mixtral", "llama"},      {"qwen2", "qwen2"},
                                                {"qwen3", "qwen3"},        {"phi3", "phi3"},
                                                {"qwen3_moe", "qwen3moe"}, {"gemma2", "gemma2"},
                                                {"gemma3_text", "gemma3"}, {"olmo2", "olmo2"},
                                                {"granite", "granite"},    {"stablelm", "stablelm"},
                                                {"phi", "phi2"},           {"cohere", "command-r"},
                                                {"falcon", "falcon"},      {"starcoder2", "starcoder2"},
                                                {"qwen2_moe", "qwen2moe"}, {"gpt_oss", "gpt-oss"}};
  return rows;
}

std::string_view checkpoint_type(std::string_view architecture) {
  if (architecture == "gptneox") return "gpt_neox";  // read, not written
  for (const CheckpointType& row : written_types()) {
    if (row.architecture == architecture) return row.type;
  }
  base::fail_unsupported("adapters for a GGUF file of architecture '", architecture, "'");
}

bool turns_heads(std::string_view architecture) {
  return architecture == "llama" || architecture == "granite";
}

GgufDecoder read_gguf_decoder(const GgufFile& file) { return Reader(file).read(); }

}  // namespace trireme::model::gguf
