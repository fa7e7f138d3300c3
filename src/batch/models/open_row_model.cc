// Opens the model of a batch job.
#include "batch/models/open_row_model.h"

#include <algorithm>
#include <map>

#include "base/files/file.h"
#include "base/machine/cpu_info.h"
#include "batch/models/class_names.h"
#include "batch/models/classify_front.h"
#include "batch/models/encoder_front.h"
#include "batch/models/model_files.h"
#include "batch/models/score_front.h"
#include "batch/models/tensor_front.h"
#include "batch/models/tensor_row_model.h"
#include "batch/models/text_row_model.h"
#include "lower/batch_proof.h"
#include "engine/decode/adapter_slots.h"
#include "model/hf/adapter.h"
#include "model/hf/directory.h"
#include "model/hf/generation.h"

namespace trireme::batch {
namespace {

constexpr const char* kEmbedding = "sentence_embedding";
constexpr int64_t kUsualBatch = 32;  // rows
// Batches in a window: among them rows of like length are sorted. Large rows of one shape want only what
// keeps instances busy.
constexpr int64_t kUsualWindow = 32, kLeastWindow = 4;
constexpr int64_t kWindowBytes = int64_t{64} << 20;  // of rows of one shape, as the model takes them

/// "input=column" words by input. Throws invalid_argument for other words and for an input named twice.
std::map<std::string, std::string> columns_by_input(const std::vector<std::string>& words) {
  std::map<std::string, std::string> columns;
  for (const std::string& word : words) {
    const size_t at = word.find('=');
    base::require(at != std::string::npos && at > 0 && at + 1 < word.size(), "input_columns: '", word,
                  "' is not input=column");
    base::require(columns.emplace(word.substr(0, at), word.substr(at + 1)).second, "input_columns: '",
                  word.substr(0, at), "' is named twice");
  }
  return columns;
}

bool has_input(const ir::Graph& graph, std::string_view name) {
  return std::any_of(graph.inputs().begin(), graph.inputs().end(),
                     [&](ir::ValueId id) { return graph.value(id).name == name; });
}

bool is_language_model(const model::Model& model) {
  if (model.format == "gguf") return true;
  if (model.format != "huggingface") return false;
  const std::string architecture = model::hf::first_architecture(model.config);
  return architecture.ends_with("ForCausalLM") || architecture.ends_with("LMHeadModel");
}

/// Every input's first dimension is open, or 1.
bool has_batch(const ir::Graph& graph) {
  return !graph.inputs().empty() &&
         std::all_of(graph.inputs().begin(), graph.inputs().end(), [&](ir::ValueId id) {
           const tensor::Shape& shape = graph.type(id).shape;
           return shape.has_rank() && shape.rank() > 0 && (!shape[0].is_static() || shape[0].value() == 1);
         });
}

bool has_open_inner_extent(const ir::Graph& graph) {
  return std::any_of(graph.inputs().begin(), graph.inputs().end(), [&](ir::ValueId id) {
    const auto& dims = graph.type(id).shape.dims();
    return std::any_of(dims.begin() + 1, dims.end(), [](const tensor::Dim& d) { return !d.is_static(); });
  });
}

/// Bytes of a row's inputs, as far as they are no more than a window may have; 0: rows differ, or have none.
int64_t row_bytes(const ir::Graph& graph) {
  int64_t bytes = 0;
  for (const ir::ValueId id : graph.inputs()) {
    const tensor::TensorType& type = graph.type(id);
    double elements = 1;
    for (size_t d = 1; d < type.shape.rank(); ++d) {
      if (!type.shape[d].is_static()) return 0;
      elements *= static_cast<double>(type.shape[d].value());
    }
    bytes += tensor::bytes_of(type.dtype, static_cast<int64_t>(std::min(elements, double{kWindowBytes})));
  }
  return bytes;
}

/// Rows under way at a time: as many as batches of like rows are found among, and no more than have room.
int64_t usual_window(const ir::Graph& graph, const sched::SchedulerOptions& s) {
  const int64_t batch = s.limits.max_rows * s.instances;
  const int64_t bytes = s.padding.is_batched ? row_bytes(graph) : 0;
  if (bytes == 0) return kUsualWindow * batch;
  return std::clamp(kWindowBytes / bytes, kLeastWindow * batch, kUsualWindow * batch);
}

/// Opens one model; the members are what its parts are made of.
class Opener {
 public:
  Opener(const ModelOptions& options, model::Model model, const base::Clock& clock)
      : o_(options), model_(std::move(model)), clock_(clock), columns_(columns_by_input(options.columns)) {}
  std::unique_ptr<RowModel> open();

 private:
  std::string task() const;
  void check_task() const;
  base::Json identity() const;
  std::string text_column(const std::string& name);
  std::unique_ptr<data::Tokenizer> tokenizer() const;
  std::optional<data::ChatTemplate> chat_template() const;
  std::unique_ptr<RowFront> graph_front();
  std::unique_ptr<RowModel> open_graph(std::unique_ptr<RowFront> front, int64_t most_rows);
  std::unique_ptr<RowModel> open_texts();
  void keep_embedding();
  int threads() const;

  const ModelOptions& o_;
  model::Model model_;
  const base::Clock& clock_;
  std::map<std::string, std::string> columns_;
  std::string task_;
  bool has_batch_ = true, is_batched_ = true, is_shown_ = false;
  std::vector<bool> by_row_;  // outputs; empty: all of them
};

std::string Opener::task() const {
  if (o_.task != "auto") return o_.task;
  if (is_language_model(model_) && !has_input(model_.graph, "attention_mask")) return "generate";
  const auto& names = model_.graph.output_names();
  const bool embeds = std::find(names.begin(), names.end(), kEmbedding) != names.end();
  return model_.format == "huggingface" && embeds ? "embed" : "run";
}

void Opener::check_task() const {
  const std::vector<std::string> tasks{"run", "embed", "classify", "generate", "score"};
  base::require(std::find(tasks.begin(), tasks.end(), task_) != tasks.end(), "task '", task_,
                "' is none of auto, run, embed, classify, generate, score");
  const bool is_of_text = task_ == "generate" || task_ == "score";
  if (is_of_text && !is_language_model(model_) && o_.tokenizer.empty())
    base::fail_unsupported("task ", task_, " needs a language model with its tokenizer; '", o_.model,
                           "' is none");
  base::require(o_.max_adapters == 0,
                "max_adapters is for input in format openai; task generate takes adapter");
  base::require(o_.adapter.empty() || task_ == "generate", "adapter is for task generate, not ", task_);
  base::require(o_.labels.empty() || task_ == "classify", "labels are for task classify, not ", task_);
  base::require(o_.ranks() == 1 || task_ == "generate" || o_.instances == 1, "ranks hold one instance");
}

/// What the outputs depend on beside the rows; names of directories and counts of threads are not part of it.
base::Json Opener::identity() const {
  ModelOptions said = o_;
  base::Json options = base::OptionList(said).to_json();
  base::Json kept = base::Json::object();
  for (const auto& [key, value] : options.as_object()) {
    const bool is_of_speed = key == "threads" || key == "instances" || key == "front_threads" ||
                             key == "batch_rows" || key == "window_rows" || key.starts_with("max_adapter") ||
                             (key == "pp" && !o_.stages_show(task_));
    const bool is_path =
        key == "model" || key == "tokenizer" || key == "chat_template" || key == "labels" || key == "adapter";
    if (!is_of_speed && !is_path) kept.set(key, value);
  }
  kept.set("task", task_);
  base::Json identity = base::Json::object({{"name", model_.name}, {"format", model_.format}});
  identity.set("files", content_of_files(o_.model, model_));
  if (identity.at("files").as_array().empty()) identity.set("builder", o_.model);
  if (!o_.tokenizer.empty()) identity.set("tokenizer", content_of_files(o_.tokenizer, {}));
  if (!o_.chat_template.empty()) identity.set("chat_template", content_of_files(o_.chat_template, {}));
  if (!o_.adapter.empty()) identity.set("adapter", content_of_files(o_.adapter, {}));
  if (!o_.labels.empty()) identity.set("labels", content_of_files(o_.labels, {}));
  identity.set("options", std::move(kept));
  return identity;
}

/// The column that a text is read from: the one that `name` is bound to, else of that name.
std::string Opener::text_column(const std::string& name) {
  const auto at = columns_.find(name);
  if (at == columns_.end()) return name;
  std::string column = at->second;
  columns_.erase(at);
  return column;
}

std::unique_ptr<data::Tokenizer> Opener::tokenizer() const {
  const std::string directory = o_.tokenizer.empty() ? model_.directory : o_.tokenizer;
  base::require(!directory.empty(), "'", o_.model, "' has no tokenizer: say where it lies by tokenizer");
  return data::open_tokenizer(directory);
}

std::optional<data::ChatTemplate> Opener::chat_template() const {
  base::require(o_.chat || (o_.system.empty() && o_.chat_template.empty()),
                "system and chat_template need chat: true");
  if (!o_.chat) return std::nullopt;
  const std::string directory = o_.tokenizer.empty() ? model_.directory : o_.tokenizer;
  std::optional<data::ChatTemplate> found;
  if (!o_.chat_template.empty())
    found = data::ChatTemplate(base::read_file(o_.chat_template), data::special_tokens_of(directory));
  else
    found = data::ChatTemplate::of_directory(directory);
  if (!found)
    base::fail(base::ErrorCode::not_found, "'", o_.model, "' has no chat template: say chat_template");
  return found;
}

void Opener::keep_embedding() {
  ir::Graph& graph = model_.graph;
  const auto& names = graph.output_names();
  const auto at = std::find(names.begin(), names.end(), kEmbedding);
  if (at == names.end())
    base::fail_unsupported("task embed needs an encoder with the output ", kEmbedding, "; '", o_.model,
                           "' has none: task run gives the outputs as they are");
  graph.set_outputs({graph.outputs()[static_cast<size_t>(at - names.begin())]}, {kEmbedding});
}

int Opener::threads() const {
  return o_.threads > 0 ? o_.threads : std::max(1, base::read_cpu_info().threads() / o_.instances);
}

/// Texts go through the tokenizer of an encoder's directory, unless the job binds its tokens themselves.
std::unique_ptr<RowFront> Opener::graph_front() {
  const ir::Graph& graph = model_.graph;
  const bool takes_texts = model_.format == "huggingface" && graph.inputs().size() == 2 &&
                           has_input(graph, "input_ids") && has_input(graph, "attention_mask") &&
                           !columns_.contains("input_ids");
  if (takes_texts) {
    PromptText text(o_.prompt, text_column("text"));
    base::require(columns_.empty(), "input_columns: an encoder takes \"text\", or its ids and mask");
    return std::make_unique<EncoderFront>(model_, std::move(text), o_.max_length);
  }
  base::require(o_.prompt.empty(), "prompt is for models that take texts");
  has_batch_ = has_batch(graph);
  is_batched_ = has_batch_ && lower::why_not_batched(graph).empty();
  is_shown_ = is_batched_ && has_open_inner_extent(graph);
  by_row_ = outputs_by_row(graph, has_batch_, is_batched_);
  return std::make_unique<TensorFront>(graph, TensorFront::Options{.columns = columns_,
                                                                   .pictures = o_.image_values,
                                                                   .has_batch = has_batch_,
                                                                   .joins_rows = is_batched_,
                                                                   .by_row = by_row_});
}

std::unique_ptr<RowModel> Opener::open_graph(std::unique_ptr<RowFront> front, int64_t most_rows) {
  TensorRowModel::Parts parts;
  parts.is_batched = is_batched_;
  parts.by_row = by_row_.empty() ? outputs_by_row(model_.graph, has_batch_, is_batched_) : by_row_;
  parts.front = std::move(front);
  parts.front_threads =
      o_.front_threads > 0 ? o_.front_threads : std::max(1, base::read_cpu_info().threads());
  parts.identity = identity();
  sched::SchedulerOptions& s = parts.scheduler;
  // More rows than are under way never come, and a batch that is not full waits for them.
  if (o_.window_rows > 0)
    most_rows = std::min(most_rows, std::max<int64_t>(1, o_.window_rows / o_.instances));
  s.limits.max_rows = is_batched_ ? (o_.batch_rows > 0 ? std::min(o_.batch_rows, most_rows) : most_rows) : 1;
  s.limits.window_ns = is_batched_ ? 20 * base::kNsPerMs : 0;
  s.padding.is_batched = is_batched_;
  s.padding.is_shown = is_shown_;
  if (is_batched_) {
    for (int64_t rows = 1; rows < s.limits.max_rows; rows *= 2) s.padding.row_buckets.push_back(rows);
    s.padding.row_buckets.push_back(s.limits.max_rows);
  }
  parts.front->pad(s.padding);
  s.runs_whole = true;
  s.instances = o_.instances;
  s.session.threads = threads();
  s.session.device = o_.device;
  s.session.strategy = o_.strategy();
  s.session.max_programs = 512;
  parts.window_rows = o_.window_rows > 0 ? o_.window_rows : usual_window(model_.graph, s);
  parts.prepared = std::make_shared<const engine::PreparedModel>(std::move(model_.graph),
                                                                 passes::PassOptions{}, s.session.strategy);
  model_.release_pages();
  return std::make_unique<TensorRowModel>(std::move(parts), clock_);
}

std::unique_ptr<RowModel> Opener::open_texts() {
  TextRowModel::Parts parts;
  parts.prompt.emplace(o_.prompt, text_column("prompt"));
  base::require(columns_.empty(), "input_columns: a language model takes \"prompt\"");
  base::require(o_.instances == 1, "a language model runs in one instance, whose steps all rows share");
  parts.tokenizer = tokenizer();
  parts.chat_template = chat_template();
  parts.system = o_.system;
  parts.stop = o_.stop;
  parts.identity = identity();
  engine::GenerateRequest& g = parts.generate;
  g.max_tokens = o_.max_tokens;
  g.stop = model::hf::end_tokens(model_);
  if (parts.chat_template) {
    // Models that answer in turns end them with the tokenizer's last token, whatever the configuration lists.
    const std::string last = parts.chat_template->end_token();
    const auto id = last.empty() ? std::nullopt : parts.tokenizer->find(last);
    if (id && std::find(g.stop.begin(), g.stop.end(), *id) == g.stop.end()) g.stop.push_back(*id);
  }
  g.sampling.temperature = o_.temperature;
  g.sampling.top_p = o_.top_p;
  g.sampling.top_k = o_.top_k;
  g.sampling.seed = o_.seed;
  g.sampling.check();
  engine::DecodeOptions d;
  d.device = o_.device;
  d.threads = o_.threads;
  d.strategy = o_.strategy();
  if (o_.batch_rows > 0) d.max_sequences = o_.batch_rows;
  if (o_.max_length > 0) d.max_length = o_.max_length;
  parts.window_rows = o_.window_rows > 0 ? o_.window_rows : 4 * d.max_sequences;
  if (!o_.adapter.empty()) {
    d.max_adapters = 1;
    d.max_adapter_rank = model::hf::adapter_rank(o_.adapter);
  }
  const auto prepared = std::make_shared<const engine::DecodeModel>(model_.graph, d, model_.files);
  model_.graph = {};
  if (!o_.adapter.empty())
    g.adapter = engine::AdapterSlots::make(prepared->form().adapters, model_.config)->load(o_.adapter);
  parts.make = [prepared, d] { return std::make_unique<engine::DecodeSession>(prepared, d); };
  return std::make_unique<TextRowModel>(std::move(parts), clock_);
}

std::unique_ptr<RowModel> Opener::open() {
  task_ = task();
  check_task();
  if (task_ == "generate") return open_texts();
  if (task_ == "score") {
    PromptText text(o_.prompt, text_column("prompt"));
    // The logits of every place are held at once: one row at a time.
    return open_graph(std::make_unique<ScoreFront>(model_, tokenizer(), std::move(text), o_.max_length), 1);
  }
  if (task_ == "embed") keep_embedding();
  std::unique_ptr<RowFront> front = graph_front();
  if (task_ == "classify") {
    front = std::make_unique<ClassifyFront>(
        std::move(front), o_.labels.empty() ? class_names_of(model_.config) : read_class_names(o_.labels));
  }
  return open_graph(std::move(front), o_.batch_rows > 0 ? o_.batch_rows : kUsualBatch);
}

}  // namespace

std::unique_ptr<RowModel> open_row_model(const ModelOptions& options,
                                         const std::function<model::Model(const std::string& path)>& open,
                                         const base::Clock& clock) {
  return Opener(options, open(options.model), clock).open();
}

}  // namespace trireme::batch
