// How sentence-transformers models form one vector per sentence: modules.json and 1_Pooling/config.json.
#include "model/hf/pooling.h"

#include <algorithm>
#include <filesystem>

#include "base/files/file.h"
#include "base/text/json.h"

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
  if (pooling.kind == PoolingKind::mean) {
    y = b.op("masked_mean_pool", {hidden, mask});
  } else if (pooling.kind == PoolingKind::first) {
    const ValueId zero = b.graph().add_constant(tensor::Tensor::scalar<int64_t>(0));
    y = b.op("gather", {hidden, zero}, {{"axis", int64_t{1}}});
  } else {
    // Padding must not win the maximum, so it is set to a number below all others.
    const ValueId kept =
        b.op("cast", {b.op("unsqueeze", {mask, b.ints({2})})}, {{"to", int64_t{9}}});  // 9: boolean
    const ValueId masked = b.op("where", {kept, hidden, b.scalar(-3.4e38f)});
    y = b.op("reduce_max", {masked, b.ints({1})}, {{"keepdims", int64_t{0}}});
  }
  return pooling.is_normalized ? b.op("l2_normalize", {y}) : y;
}

}  // namespace trireme::model::hf
