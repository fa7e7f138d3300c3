// Low-rank adapters (LoRA) in the files that PEFT writes.
#include "model/hf/adapter.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/files/file.h"
#include "model/hf/forms/forms.h"

namespace trireme::model::hf {
namespace {

namespace fs = std::filesystem;
using base::Json;
using tensor::DType;
using tensor::Tensor;

constexpr const char* kConfig = "adapter_config.json";
constexpr const char* kWeights = "adapter_model.safetensors";
constexpr size_t kMostConfigBytes = size_t{1} << 20;
constexpr int64_t kMostRank = 4096;

/// Members that do not change what a trained adapter computes.
const std::set<std::string_view> kAdapterKeysWithoutEffect{
    "auto_mapping",        "base_model_name_or_path",
    "eva_config",  // how the first factors were chosen
    "exclude_modules",
    "fan_in_fan_out",  // concerns the base; the factors are the same
    "inference_mode",      "layers_pattern",
    "layers_to_transform",  // the file only has the layers that exist
    "loftq_config",        "lora_dropout",
    "megatron_core",       "peft_version",
    "qalora_group_size",   "revision",
    "runtime_config",      "task_type"};
/// Initialisations that also change the base's weights; others only choose the first factors.
constexpr std::string_view kChangesBase[] = {"pissa", "olora", "corda", "loftq", "lora_ga"};

bool is_nothing(const Json& value) {
  return value.is_null() || (value.is_bool() && !value.as_bool()) ||
         (value.is_array() && value.size() == 0) || (value.is_object() && value.size() == 0);
}

/// The content of adapter_config.json.
struct Config {
  int64_t rank = 0;
  double alpha = 0;
  bool is_rank_stable = false;
  std::vector<std::string> targets;  ///< none: a pattern, or all
  /// By the end of a module's name, in the order of the file: of several that fit, the first counts.
  std::vector<std::pair<std::string, int64_t>> ranks;
  std::vector<std::pair<std::string, double>> alphas;  ///< likewise

  explicit Config(const Json& json);
  double scale(const std::string& module, int64_t rank) const;
  void check(const std::string& module, int64_t rank) const;

 private:
  void read(std::string_view key, const Json& value);
};

/// Whether a module's name equals `end`, or ends with "." and `end`.
bool ends_in(std::string_view module, std::string_view end) {
  if (!module.ends_with(end)) return false;
  return module.size() == end.size() || module[module.size() - end.size() - 1] == '.';
}

/// The value for a module, or the one for all modules.
template <class T>
T by_module(const std::vector<std::pair<std::string, T>>& values, std::string_view module, T otherwise) {
  for (const auto& [end, value] : values) {
    if (ends_in(module, end)) return value;
  }
  return otherwise;
}

/// Keys of PEFT's patterns are regular expressions; only those that are plain names are accepted.
void check_pattern(const std::string& key) {
  const bool is_name = !key.empty() && std::all_of(key.begin(), key.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '.';
  });
  if (!is_name)
    base::fail_unsupported(kConfig, ": the pattern '", key, "', which is no end of a module's name");
}

int64_t rank_of(const Json& value, std::string_view key) {
  const int64_t rank = value.as_int();
  base::require(rank > 0 && rank <= kMostRank, kConfig, ": ", key, " is ", rank, "; 1 to ", kMostRank);
  return rank;
}

double alpha_of(const Json& value, std::string_view key) {
  const double alpha = value.as_double();
  base::require(std::isfinite(alpha), kConfig, ": ", key, " is no number");
  return alpha;
}

Config::Config(const Json& json) {
  base::require(json.is_object(), kConfig, " holds no object");
  rank = rank_of(json.at("r"), "r");
  alpha = alpha_of(json.at("lora_alpha"), "lora_alpha");
  for (const auto& [key, value] : json.as_object()) read(key, value);
}

void Config::read(std::string_view key, const Json& value) {
  if (key == "r" || key == "lora_alpha" || kAdapterKeysWithoutEffect.contains(key)) return;
  if (key == "peft_type") {
    if (value.as_string() != "LORA") base::fail_unsupported(kConfig, ": peft_type ", value.dump());
  } else if (key == "use_rslora") {
    is_rank_stable = value.as_bool();
  } else if (key == "bias") {
    if (value.as_string() != "none") base::fail_unsupported(kConfig, ": bias ", value.dump());
  } else if (key == "target_modules") {
    if (!value.is_array()) return;  // a pattern: the file only has the modules that matched
    for (const Json& name : value.as_array()) targets.push_back(name.as_string());
  } else if (key == "init_lora_weights") {
    const std::string how = value.is_string() ? value.as_string() : "";
    for (const std::string_view prefix : kChangesBase) {
      if (how.starts_with(prefix))
        base::fail_unsupported(
            kConfig, ": init_lora_weights ", value.dump(),
            ", which changes the base; PEFT's save_pretrained(path_initial_model_for_weight_"
            "conversion=...) writes an adapter of the base as it is");
    }
  } else if (key == "rank_pattern" || key == "alpha_pattern") {
    if (value.is_null()) return;
    for (const auto& [module, number] : value.as_object()) {
      check_pattern(module);
      if (key == "rank_pattern") ranks.emplace_back(module, rank_of(number, key));
      if (key == "alpha_pattern") alphas.emplace_back(module, alpha_of(number, key));
    }
  } else if (!is_nothing(value)) {
    base::fail_unsupported(kConfig, ": ", key, " ", value.dump().substr(0, 80));
  }
}

double Config::scale(const std::string& module, int64_t own) const {
  const auto r = static_cast<double>(own);
  return by_module(alphas, module, alpha) / (is_rank_stable ? std::sqrt(r) : r);
}

void Config::check(const std::string& module, int64_t own) const {
  const int64_t wanted = by_module(ranks, module, rank);
  base::require(own == wanted, "'", module, "' has rank ", own, ", ", kConfig, " says ", wanted);
  const bool is_target = std::any_of(targets.begin(), targets.end(),
                                     [&](const std::string& end) { return ends_in(module, end); });
  base::require(targets.empty() || is_target || (targets.size() == 1 && targets[0] == "all-linear"), "'",
                module, "' is in the file and no target module of ", kConfig);
}

Config read_adapter_config(const std::string& directory) {
  return Config(
      base::parse_json(base::read_file((fs::path(directory) / kConfig).string(), kMostConfigBytes)));
}

/// Whether a matrix of f32, f16 or bf16 has neither infinities nor NaN: those have all bits of the exponent.
bool has_only_numbers(const Tensor& t) {
  if (t.dtype() == DType::f32)
    return std::ranges::all_of(t.data<float>(), [](float v) { return std::isfinite(v); });
  const uint16_t exponent = t.dtype() == DType::f16 ? 0x7c00 : 0x7f80;
  for (int64_t i = 0; i < t.elements(); ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, t.raw() + 2 * i, sizeof bits);
    if ((bits & exponent) == exponent) return false;
  }
  return true;
}

/// The two factors of one module of the checkpoint.
struct Factors {
  const Tensor *a = nullptr, *b = nullptr;
};

/// The factors in the file, by the names of the checkpoint's modules.
std::map<std::string, Factors> factors_of(const Safetensors& file) {
  constexpr std::string_view kFront = "base_model.model.", kA = ".lora_A.weight", kB = ".lora_B.weight";
  std::map<std::string, Factors> found;
  for (const auto& [name, t] : file.tensors()) {
    const bool is_a = name.ends_with(kA), is_b = name.ends_with(kB);
    if (!name.starts_with(kFront) || (!is_a && !is_b))
      base::fail_unsupported("tensor '", name.substr(0, 200), "' of an adapter: known are ", kFront, "MODULE",
                             kA, " and ", kB);
    base::require(t.rank() == 2 && t.dims()[0] > 0 && t.dims()[1] > 0, "tensor '", name, "' is ",
                  t.type().to_string(), ", a factor is a matrix");
    if (t.dtype() != DType::f32 && t.dtype() != DType::f16 && t.dtype() != DType::bf16)
      base::fail_unsupported("tensor '", name, "' of type ", tensor::name_of(t.dtype()));
    base::require(has_only_numbers(t), "tensor '", name, "' of an adapter has infinities or NaN");
    const size_t length = name.size() - kFront.size() - kA.size();
    Factors& factors = found[name.substr(kFront.size(), length)];
    (is_a ? factors.a : factors.b) = &t;
  }
  for (const auto& [module, factors] : found)
    base::require(factors.a != nullptr && factors.b != nullptr, "of '", module, "' one factor is missing");
  base::require(!found.empty(), "the adapter holds no factors");
  return found;
}

/// A module's name in the network: a checkpoint of the body alone omits the front of the name.
std::string known_name(const std::string& name, const ModuleSizes& modules) {
  if (modules.contains(name)) return name;
  for (const char* front : {"model.", "transformer.", "gpt_neox."}) {
    if (modules.contains(front + name)) return front + name;
  }
  return name;
}

void require_sizes(const AdapterPart& part, const ModuleSizes& modules) {
  const auto at = modules.find(part.module);
  if (at == modules.end())
    base::fail_unsupported("the base has no product '", part.module, "' that takes adapters");
  const auto [in, out] = at->second;
  base::require(part.a.dims()[1] == in && part.b.dims()[0] == out && part.b.dims()[1] == part.rank(),
                "factors ", part.a.type().to_string(), " and ", part.b.type().to_string(), " of '",
                part.module, "', whose product takes rows of ", in, " to rows of ", out);
}

/// The parts that a module of the checkpoint is of ours: one, or those that the checkpoint joins.
std::vector<AdapterPart> parts_of(const std::string& name, const Factors& factors,
                                  const std::vector<Joined>& joined, const ModuleSizes& modules) {
  for (const Joined& j : joined) {
    if (!ends_in(name, j.name)) continue;
    const std::string front = name.substr(0, name.size() - j.name.size());
    std::vector<AdapterPart> parts;
    for (size_t i = 0; i < j.parts.size(); ++i)
      parts.push_back({.module = known_name(front + j.parts[i], modules),
                       .a = *factors.a,
                       .b = part_of(*factors.b, j, i)});
    return parts;
  }
  return {{.module = known_name(name, modules), .a = *factors.a, .b = *factors.b}};
}

}  // namespace

int64_t Adapter::rank() const {
  int64_t most = 0;
  for (const AdapterPart& p : parts) most = std::max(most, p.rank());
  return most;
}

int64_t adapter_rank(const std::string& directory) {
  const Config config = read_adapter_config(directory);
  int64_t most = config.rank;
  for (const auto& [end, rank] : config.ranks) most = std::max(most, rank);
  return most;
}

Adapter read_adapter(const std::string& directory, const ModuleSizes& modules, const Json& base) {
  const FormRow* row = base.is_object() ? find_form(base) : nullptr;
  if (row == nullptr) return read_adapter(directory, modules, std::vector<Joined>{});
  return read_adapter(directory, modules, read_form(*row, base).weights.joined);
}

Adapter read_adapter(const std::string& directory, const ModuleSizes& modules,
                     const std::vector<Joined>& joined) {
  const Config config = read_adapter_config(directory);
  const Safetensors file = Safetensors::open((fs::path(directory) / kWeights).string());
  Adapter adapter;
  std::set<std::string> known;
  for (const auto& [name, factors] : factors_of(file)) {
    config.check(name, factors.a->dims()[0]);
    for (AdapterPart& part : parts_of(name, factors, joined, modules)) {
      require_sizes(part, modules);
      base::require(known.insert(part.module).second, "two adapters of '", part.module, "' in one file");
      part.scale = config.scale(name, part.rank());
      adapter.parts.push_back(std::move(part));
    }
  }
  return adapter;
}

}  // namespace trireme::model::hf
