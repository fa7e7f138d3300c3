// Defines how a model runs: reads its parameters as options, so that errors have the same form.
#include "serve/config/run_config.h"

#include <algorithm>
#include <charconv>

#include "base/text/options.h"
#include "serve/config/options.h"

namespace trireme::serve {
namespace {

struct RunFields {
  RunConfig config;
  passes::WeightOptions weights;
  engine::SpeculationOptions speculation;
  base::Duration window{-1}, slo{-1}, loop{-1};
  std::string pad_inputs;
  bool is_deadline_aware = false, runs_whole = false;
  int prefill_instances = 0;

  void fields(base::OptionList& f) {
    f.add_choice("precision", &config.precision, {"f32", "bf16", "f16", "fp8"}, "operands of products");
    weights.fields(f);
    speculation.fields(f);
    f.add("threads", &config.threads, "threads of an instance").at_least(0).at_most(4096);
    f.add("buckets", &config.buckets, "row counts that batches are filled up to").at_least(1);
    f.add("batch_window", &window, "longest wait for a fuller batch");
    f.add_choice("image_input", &config.image_input, {"off", "none", "unit", "inception", "imagenet"},
                 "the input takes picture files; what their bytes become");
    f.add("stream_rows", &config.streams_rows, "each row of the outputs is an answer");
    f.add("pad_buckets", &config.pad_buckets, "lengths that open extents are filled up to").at_least(1);
    f.add("pad_value", &config.pad_value, "what they are filled with");
    f.add("pad_inputs", &pad_inputs, "only these inputs: name=value,...");
    f.add("slo_p99", &slo, "goal of the 99th percentile");
    f.add("loop_timeout", &loop, "longest time for the loops of a request");
    f.add("whole_batches", &runs_whole, "a batch takes all that fits, whatever its rows cost");
    f.add("deadline_aware", &is_deadline_aware, "timeouts bound the answer");
    f.add("prefill_instances", &prefill_instances, "instances that read prompts").at_least(0).at_most(64);
    f.add("prefill_threads", &config.prefill_threads, "threads of such an instance")
        .at_least(0)
        .at_most(4096);
  }
};

/// Reads "a=1,b", with `otherwise` as the value of b.
std::map<std::string, double> values_by_name(const std::string& text, double otherwise) {
  std::map<std::string, double> out;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    const std::string item = text.substr(at, end - at), name = item.substr(0, item.find('='));
    double value = otherwise;
    if (name.size() < item.size()) {
      const char* last = item.data() + item.size();
      const auto [stop, error] = std::from_chars(item.data() + name.size() + 1, last, value);
      base::require(error == std::errc() && stop == last, "parameter pad_inputs: '", item,
                    "' is no name=value");
    }
    base::require(!name.empty(), "parameter pad_inputs: '", text, "' has an item without a name");
    out[name] = value;
    at = end + 1;
  }
  return out;
}

/// A parameter that only says more about another one means nothing without it.
void require_leaders(const base::OptionList& list) {
  constexpr std::pair<std::string_view, std::string_view> kPairs[] = {
      {"weight_group", "weights"},   {"weight_zeros", "weights"},    {"draft", "speculate"},
      {"draft_tokens", "speculate"}, {"lookup_tokens", "speculate"}, {"draft_cache_bytes", "speculate"},
      {"pad_value", "pad_buckets"},  {"pad_inputs", "pad_buckets"},
  };
  for (const auto& [name, leader] : kPairs) {
    base::require(!list.given(name) || list.given(leader), "parameter ", name, " needs ", leader);
  }
}

}  // namespace

bool RunConfig::knows(const std::string& key) {
  RunFields fields;
  return base::OptionList(fields).to_json().contains(key);
}

RunConfig RunConfig::of(const std::vector<std::pair<std::string, std::string>>& parameters) {
  RunFields fields;
  base::OptionList list(fields);
  const base::Json known = list.to_json();
  for (const auto& [key, value] : parameters) {
    if (!known.contains(key)) continue;
    std::string flag = "--" + key + "=" + value;
    for (char& c : flag) {
      if (c == '=') break;
      if (c == '_') c = '-';
    }
    try {
      list.parse_flags(std::vector<std::string>{flag});
    } catch (const base::Error& e) {
      throw e.with("parameters");
    }
  }
  if (fields.window.ns >= 0) fields.config.window_ns = fields.window.ns;
  fields.config.pad_inputs = values_by_name(fields.pad_inputs, fields.config.pad_value);
  std::sort(fields.config.pad_buckets.begin(), fields.config.pad_buckets.end());
  require_leaders(list);
  if (list.given("weights")) fields.config.weights = fields.weights;
  if (list.given("speculate")) fields.config.speculation = fields.speculation;
  if (fields.slo.ns >= 0) fields.config.p99_ns = fields.slo.ns;
  if (fields.loop.ns >= 0) fields.config.loop_ns = fields.loop.ns;
  if (list.given("deadline_aware")) fields.config.is_deadline_aware = fields.is_deadline_aware;
  if (list.given("prefill_instances")) fields.config.prefill_instances = fields.prefill_instances;
  if (list.given("whole_batches")) fields.config.runs_whole = fields.runs_whole;
  return fields.config;
}

passes::Strategy strategy_of(const RunConfig& run, const ServeOptions& options) {
  passes::Strategy strategy = options.ranks.read();
  strategy.precision.compute = run.precision;
  strategy.weights = run.weights.value_or(options.weights);
  return strategy;
}

}  // namespace trireme::serve
