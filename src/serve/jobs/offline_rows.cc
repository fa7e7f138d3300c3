// Runs the OpenAI API without a server.
#include "serve/jobs/offline_rows.h"

#include <filesystem>
#include <utility>

#include "base/files/directory.h"
#include "batch/models/model_files.h"
#include "serve/core/kserve_core.h"
#include "serve/jobs/openai_rows.h"
#include "serve/seeing/metrics.h"

namespace trireme::serve {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kRowsOfSequence = 4;  // in flight per sequence of the model, so that some always wait

void check(const batch::ModelOptions& o) {
  const batch::ModelOptions usual;
  base::require(o.task == "auto" && o.columns.empty() && o.prompt.empty() && !o.chat && o.system.empty() &&
                    o.stop.empty() && o.max_tokens == usual.max_tokens &&
                    o.temperature == usual.temperature && o.top_p == usual.top_p && o.top_k == usual.top_k &&
                    o.seed == usual.seed,
                "input in format openai: each line says its prompt and how it is sampled, the job does not");
  base::require(o.adapter.empty(),
                "input in format openai: each line names its adapter behind the model, and ",
                "max_adapters says how many there are; the job takes no adapter");
  base::require(
      o.precision == usual.precision && o.tokenizer.empty() && o.chat_template.empty(),
      "input in format openai: precision, tokenizer and chat_template are those of the model's directory");
}

/// The directory of a model, which may be a GGUF file.
fs::path directory_of(const std::string& model) {
  std::error_code error;
  const fs::path path = fs::canonical(model, error);
  if (error) base::fail(base::ErrorCode::not_found, "no model '", model, "': ", error.message());
  return path.extension() == ".gguf" ? path.parent_path() : path;
}

ServeOptions options_of(const batch::ModelOptions& o) {
  ServeOptions options;
  const fs::path path = directory_of(o.model);
  options.model_repository = {path.parent_path().string()};
  options.model_control = ModelControl::explicitly;
  options.load_model = {path.filename().string()};
  options.threads = o.threads;
  options.instances = o.instances;
  options.device = o.device;
  options.weights = o.weights;
  options.ranks.tp = o.tp;
  options.ranks.pp = o.pp;
  options.ranks.ep = o.ep;
  options.cache.max_length = o.max_length;
  options.cache.max_adapters = o.max_adapters;
  options.cache.max_adapter_rank = o.max_adapter_rank;
  if (o.batch_rows > 0) options.cache.max_sequences = options.max_batch = o.batch_rows;
  options.warm_up = WarmUpLevel::none;
  options.max_queue = 1 << 20;  // the job itself bounds it
  options.request_timeout.ns = 0;
  return options;
}

/// The content hashes of the adapters in adapters/NAME/ beside a model's files.
base::Json content_of_adapters(const std::string& model) {
  const std::string directory = directory_of(model) / "adapters";
  base::Json all = base::Json::object();
  std::error_code error;
  for (const std::string& name : base::names_in(directory, error)) {
    if (!name.starts_with('.') && fs::is_directory(directory + "/" + name, error))
      all.set(name, batch::content_of_files(directory + "/" + name, {}));
  }
  return all;
}

/// All parts of a server except its listeners.
class OfflineRows final : public batch::RowModel {
 public:
  OfflineRows(const batch::ModelOptions& o, const base::Env& env)
      : options_(options_of(o)),
        repository_(options_, env, metrics_),
        core_(repository_, options_, env),
        api_(core_, 0, {}) {
    repository_.load();
    core_.set_state(ServerState::serving);
    static_cast<void>(core_.find(options_.load_model[0], ""));  // throws the error that prevented loading
    OpenAiRows::Parts parts{.api = api_, .window_rows = kRowsOfSequence * options_.cache.max_sequences};
    if (o.window_rows > 0) parts.window_rows = o.window_rows;
    parts.model = options_.load_model[0];
    parts.has_adapters = o.max_adapters > 0;
    batch::ModelOptions said = o;
    const base::Json all = base::OptionList(said).to_json();
    base::Json kept = base::Json::object();
    for (const char* key :
         {"weights", "weight_group", "weight_zeros", "weight_rows", "device", "tp", "max_length"})
      kept.set(key, all.at(key));
    if (o.ep > 1) kept.set("ep", o.ep);
    if (o.pp > 1) kept.set("pp", o.pp);  // the model's directory may ask for fp8, in which stages show
    parts.identity = base::Json::object({{"name", parts.model},
                                         {"files", batch::content_of_files(o.model, {})},
                                         {"options", std::move(kept)}});
    if (parts.has_adapters) parts.identity.set("adapters", content_of_adapters(o.model));
    rows_ = std::make_unique<OpenAiRows>(std::move(parts));
  }
  ~OfflineRows() override {
    rows_.reset();
    repository_.close();
  }

  std::vector<std::string> columns() const override { return rows_->columns(); }
  std::vector<data::Field> outputs() const override { return rows_->outputs(); }
  int64_t piece_rows() const override { return rows_->piece_rows(); }
  void submit(std::shared_ptr<const data::Rows> piece, batch::PieceSink sink) override {
    rows_->submit(std::move(piece), std::move(sink));
  }
  void give_up() override { rows_->give_up(); }
  batch::ModelUse use() const override { return rows_->use(); }
  base::Json identity() const override { return rows_->identity(); }

 private:
  const ServeOptions options_;
  MetricRegistry metrics_;
  Repository repository_;
  KserveCore core_;
  OpenAiApi api_;
  std::unique_ptr<OpenAiRows> rows_;
};

}  // namespace

std::unique_ptr<batch::RowModel> open_offline_rows(const batch::ModelOptions& options, const base::Env& env) {
  check(options);
  return std::make_unique<OfflineRows>(options, env);
}

}  // namespace trireme::serve
