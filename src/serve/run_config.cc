// How a model runs: reads the parameters as options, so that errors read alike.
#include "serve/run_config.h"

#include "base/options.h"

namespace trireme::serve {
namespace {

struct Fields {
  RunConfig config;
  base::Duration window{-1};
  bool is_deadline_aware = false;

  void fields(base::OptionList& f) {
    f.add_choice("precision", &config.precision, {"f32", "bf16", "f16"}, "operands of products");
    f.add("threads", &config.threads, "threads of an instance").at_least(0).at_most(4096);
    f.add("buckets", &config.buckets, "row counts that batches are filled up to").at_least(1);
    f.add("batch_window", &window, "longest wait for a fuller batch");
    f.add("stream_rows", &config.streams_rows, "each row of the outputs is an answer");
    f.add("deadline_aware", &is_deadline_aware, "timeouts bound the answer");
  }
};

}  // namespace

RunConfig RunConfig::of(const std::vector<std::pair<std::string, std::string>>& parameters) {
  Fields fields;
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
  if (list.given("deadline_aware")) fields.config.is_deadline_aware = fields.is_deadline_aware;
  return fields.config;
}

}  // namespace trireme::serve
