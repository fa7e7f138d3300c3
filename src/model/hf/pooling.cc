// How sentence-transformers models make one vector of a sentence: modules.json and 1_Pooling/config.json.
#include "model/hf/pooling.h"

#include <algorithm>
#include <filesystem>

#include "base/file.h"
#include "base/json.h"

namespace trireme::model::hf {
namespace {

namespace fs = std::filesystem;
using ir::ValueId;

PoolingKind read_kind(const base::Json& config) {
  struct Mode {
    std::string_view key;
    PoolingKind kind;
  };
  constexpr Mode kModes[] = {{"pooling_mode_mean_tokens", PoolingKind::mean},
                             {"pooling_mode_cls_token", PoolingKind::first},
                             {"pooling_mode_max_tokens", PoolingKind::max}};
  int found = 0;
  PoolingKind kind = PoolingKind::mean;
  for (const base::JsonMember& member : config.as_object()) {
    if (!member.key.starts_with("pooling_mode_") || !member.value.is_bool() || !member.value.as_bool())
      continue;
    const auto* mode = std::find_if(std::begin(kModes), std::end(kModes),
                                    [&](const Mode& m) { return m.key == member.key; });
    if (mode == std::end(kModes)) base::fail_unsupported("pooling mode '", member.key, "'");
    kind = mode->kind;
    ++found;
  }
  if (found != 1) base::fail_unsupported("pooling with ", found, " modes at once");
  return kind;
}

/// Kept tokens as f32 [batch, seq, 1].
ValueId kept_tokens(Builder& b, ValueId mask) {
  return b.op("unsqueeze", {b.op("cast", {mask}, {{"to", int64_t{1}}}), b.ints({2})});
}

ir::Attrs without_axis() { return {{"keepdims", int64_t{0}}}; }

}  // namespace

Pooling read_pooling(const std::string& directory) {
  Pooling pooling;
  const fs::path root(directory);
  if (!base::file_exists((root / "modules.json").string())) return pooling;
  const base::Json modules = base::parse_json(base::read_file((root / "modules.json").string()));
  for (const base::Json& module : modules.as_array()) {
    const std::string type = module.at("type").as_string();
    const std::string kind = type.substr(type.rfind('.') + 1);
    if (kind == "Transformer") continue;
    if (kind == "Normalize") {
      pooling.is_normalized = true;
    } else if (kind == "Pooling") {
      const std::string at = base::safe_join(directory, module.at("path").as_string() + "/config.json");
      pooling.kind = read_kind(base::parse_json(base::read_file(at)));
    } else {
      base::fail_unsupported("sentence-transformers module '", type, "'");
    }
  }
  return pooling;
}

ValueId pool(Builder& b, ValueId hidden, ValueId mask, const Pooling& pooling) {
  ValueId y = ir::kNoValue;
  const ValueId seq_axis = b.ints({1});
  if (pooling.kind == PoolingKind::first) {
    y = b.op("gather", {hidden, b.graph().add_constant(tensor::Tensor::scalar<int64_t>(0))},
             {{"axis", int64_t{1}}});
  } else if (pooling.kind == PoolingKind::mean) {
    const ValueId kept = kept_tokens(b, mask);
    const ValueId sum = b.op("reduce_sum", {b.op("mul", {hidden, kept}), seq_axis}, without_axis());
    const ValueId count = b.op("reduce_sum", {kept, seq_axis}, without_axis());  // [batch, 1]
    y = b.op("div", {sum, b.op("max", {count, b.scalar(1e-9f)})});
  } else {
    // Padding may not win the maximum.
    const ValueId low = b.op("mul", {b.op("sub", {kept_tokens(b, mask), b.scalar(1)}), b.scalar(1e30f)});
    y = b.op("reduce_max", {b.op("add", {hidden, low}), seq_axis}, without_axis());
  }
  if (!pooling.is_normalized) return y;
  const ValueId length = b.op("reduce_l2", {y, b.ints({1})}, {{"keepdims", int64_t{1}}});  // [batch, 1]
  return b.op("div", {y, b.op("max", {length, b.scalar(1e-12f)})});
}

}  // namespace trireme::model::hf
