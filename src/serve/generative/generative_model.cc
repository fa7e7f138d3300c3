// A language model that continues texts.
#include "serve/generative/generative_model.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/files/file.h"
#include "base/files/inside_path.h"
#include "base/machine/cpu_info.h"
#include "engine/decode/adapter_states.h"
#include "engine/decode/draft_model.h"
#include "engine/decode/known_beginnings.h"
#include "model/hf/directory.h"
#include "model/hf/generation.h"
#include "sched/current_error.h"
#include "serve/config/run_config.h"
#include "serve/generative/text_session.h"
#include "serve/models/call.h"
#include "serve/models/model_file.h"
#include "serve/seeing/price.h"

namespace trireme::serve {
namespace {

using tensor::DType;

constexpr const char* kText = "text_input";
constexpr const char* kAnswer = "text_output";
constexpr int64_t kUsualTokens = 16;  // of an answer where nobody says how many, as the OpenAI API has it

/// The inputs beside the text: none is required, and what is not given is as in the OpenAI API.
struct Setting {
  const char* name;
  WireType type;
  void (*set)(TextAsk& ask, double value);
};

const std::vector<Setting>& settings() {
  static const std::vector<Setting> list{
      {"max_tokens", DType::i32, [](TextAsk& a, double v) { a.generate.max_tokens = int64_t(v); }},
      {"temperature", DType::f32, [](TextAsk& a, double v) { a.generate.sampling.temperature = v; }},
      {"top_k", DType::i32, [](TextAsk& a, double v) { a.generate.sampling.top_k = int64_t(v); }},
      {"top_p", DType::f32, [](TextAsk& a, double v) { a.generate.sampling.top_p = v; }},
      {"min_p", DType::f32, [](TextAsk& a, double v) { a.generate.sampling.min_p = v; }},
      {"repetition_penalty", DType::f32,
       [](TextAsk& a, double v) { a.generate.sampling.repetition_penalty = v; }},
      {"presence_penalty", DType::f32,
       [](TextAsk& a, double v) { a.generate.sampling.presence_penalty = v; }},
      {"frequency_penalty", DType::f32,
       [](TextAsk& a, double v) { a.generate.sampling.frequency_penalty = v; }},
      {"random_seed", DType::i32, [](TextAsk& a, double v) { a.generate.sampling.seed = int64_t(v); }},
      {"ignore_eos", DType::boolean, [](TextAsk& a, double v) { a.ignores_end = v != 0; }},
  };
  return list;
}

constexpr const char* kStop = "stop";
constexpr const char* kAdapter = "adapter";

ModelConfig complete(const ModelSource& source, const ServeOptions& options) {
  ModelConfig config = source.config;
  base::require(!config.sequence && !config.is_batched() && config.instances <= 1, "model '", source.name,
                "' continues texts, all of them in one session: it takes no sequence_batching, no "
                "max_batch_size and one instance");
  check_text_queue(config);
  config.name = source.name;
  config.platform = "trireme_text";
  config.max_batch_size = 0;
  config.instances = 1;
  config.is_decoupled = true;
  config.inputs = {{.name = kText, .type = std::nullopt, .dims = {1}}};
  config.inputs.push_back({.name = kStop, .type = std::nullopt, .dims = {-1}, .is_optional = true});
  for (const Setting& s : settings())
    config.inputs.push_back({.name = s.name, .type = s.type, .dims = {1}, .is_optional = true});
  if (options.cache.max_adapters > 0)
    config.inputs.push_back({.name = kAdapter, .type = std::nullopt, .dims = {1}, .is_optional = true});
  config.outputs = {{.name = kAnswer, .type = std::nullopt, .dims = {1}}};
  return config;
}

/// Of this load of the model: the next one's files may differ.
std::string follow_key(const ModelSource& source) {
  static std::atomic<uint64_t> loads{0};
  return FollowKey{.path = source.path,
                   .continues_texts = true,
                   .parameters = source.config.parameters,
                   .kept_outputs = {},
                   .load = ++loads}
      .text();
}

constexpr int64_t kShortText = 4 << 10;  // takes less time to tokenize than to hand over

int64_t text_bytes(const InferRequest& request) {
  int64_t bytes = 0;
  for (const WireTensor& input : request.inputs) {
    for (const std::string& text : input.strings) bytes += static_cast<int64_t>(text.size());
  }
  return bytes;
}

bool has_tokenizer(const std::string& directory) {
  const auto has = [&](const char* name) { return base::file_exists(directory + "/" + name); };
  return has("tokenizer.json") || has("tokenizer.model") || (has("vocab.json") && has("merges.txt"));
}

}  // namespace

bool is_generative(const ModelSource& source) {
  if (!source.config.inputs.empty()) return false;
  if (!gguf_file_of(source.path).empty()) return true;
  if (!base::file_exists(source.path + "/config.json")) return false;
  const std::string architecture = model::hf::first_architecture(model::hf::read_config_json(source.path));
  const bool is_causal = architecture.ends_with("ForCausalLM") || architecture.ends_with("LMHeadModel");
  return is_causal && has_tokenizer(source.path);
}

/// Gives the client of a tensor protocol the answer: a part for every piece of text, or one with all of it.
class GenerativeModel::PartsReader final : public TextReader {
 public:
  PartsReader(const ServedModel& model, const InferRequest& request, InferSink sink)
      : clock_(model.clock()),
        wants_one_(sink.wants_one_part),
        wish_(Border(model.config()).wishes(request)),
        call_(model, request, std::move(sink)) {}

  Call& call() { return call_; }
  void follow(std::shared_ptr<const TextCall> text) { text_ = std::move(text); }

  void on_piece(const TextPiece& piece) override {
    if (wants_one_) {
      whole_ += piece.text;
    } else if (!piece.text.empty()) {
      give(std::string(piece.text));
    }
  }
  void on_end(const TextEnd&) override {
    if (wants_one_) give(std::move(whole_));
    call_.answer([&] {
      InferResponse end = call_.head();
      end.is_decoupled = true;
      if (text_) {
        end.timing = text_->timing();
        end.pages_asked_ns = text_->times().pages_asked_ns;
        end.pages_ns = text_->times().pages_ns;
      }
      return end;
    });
    text_.reset();
  }
  void on_error(const base::Error& error) override {
    call_.fail(error, is_gone() ? sched::Ending::cancelled : sched::Ending::failed);
    text_.reset();
  }
  bool is_gone() const override { return call_.is_cancelled(); }

 private:
  void give(std::string text) {
    const int64_t begin_ns = clock_.now_ns();
    InferResponse part = call_.head();
    part.is_final = false;
    if (!wish_.empty())
      part.outputs.push_back({.tensor = {.name = kAnswer, .dims = {1}, .strings = {std::move(text)}},
                              .is_binary = wish_[0].is_binary});
    call_.give_part(std::move(part), 0, begin_ns);  // steps compute for many texts at once
  }

  const base::Clock& clock_;
  const bool wants_one_;
  const std::vector<AnswerWish> wish_;
  Call call_;
  std::string whole_;
  std::shared_ptr<const TextCall> text_;  // that tells this one, until the end
};

struct GenerativeModel::Parts {
  std::unique_ptr<data::Tokenizer> tokenizer;
  std::optional<data::ChatTemplate> chat_template;
  std::vector<int64_t> end_tokens;
  int64_t weight_bytes = 0;
  std::shared_ptr<engine::AdapterSlots> adapters;
  TextServices::Model services;

  void add_turn_end();
  void add_drafter(const ModelSource& source, const ModelHost& host, int64_t vocabulary);
};

/// Models that answer in turns end them with the tokenizer's last token, whatever the configuration lists.
void GenerativeModel::Parts::add_turn_end() {
  if (!chat_template) return;
  const std::string last = chat_template->end_token();
  const auto id = last.empty() ? std::nullopt : tokenizer->find(last);
  if (id && std::find(end_tokens.begin(), end_tokens.end(), *id) == end_tokens.end())
    end_tokens.push_back(*id);
}

namespace {

/// What a model's own configuration names as its draft: beside the model, and in a model repository.
std::string own_draft(const std::string& draft, const ModelSource& source,
                      const std::vector<std::string>& repositories) {
  const std::string path = draft.starts_with('/') ? draft : source.path + "/" + draft;
  for (const std::string& root : repositories) {
    if (auto inside = base::path_inside(root, path)) return *std::move(inside);
  }
  base::fail(base::ErrorCode::not_found, "no model '", draft, "' in a model repository");
}

}  // namespace

/// Who guesses the next tokens of texts.
void GenerativeModel::Parts::add_drafter(const ModelSource& source, const ModelHost& host,
                                         int64_t vocabulary) {
  const RunConfig run = RunConfig::of(source.config.parameters);
  const auto own = run.speculation;
  const engine::SpeculationOptions speculation = own.value_or(host.options.texts.speculation);
  speculation.check();
  if (speculation.speculate == engine::Speculation::off) return;
  const engine::DecodeOptions options =
      engine::draft_options(session_options(run, host.options), speculation);
  std::shared_ptr<const engine::DecodeModel> draft;
  if (speculation.speculate == engine::Speculation::draft) {
    try {
      const std::string path =
          own ? own_draft(speculation.draft, source, host.options.model_repository) : speculation.draft;
      const model::Model model = open_model(path, host.options.others);
      data::require_same_tokens(*tokenizer, *data::open_tokenizer(model.directory));
      draft = std::make_shared<const engine::DecodeModel>(model.graph, options, model.files);
    } catch (const base::Error& e) {
      throw e.with(base::concat("draft '", speculation.draft, "'"));
    }
    weight_bytes += draft->weight_bytes();
  }
  services.service.draft_tokens = speculation.draft_tokens;
  services.service.make_drafter = [speculation, vocabulary, draft, options] {
    return engine::make_drafter(speculation, vocabulary, draft, options);
  };
}

namespace {

sched::TextService::MakeSession session_maker(const std::shared_ptr<const engine::DecodeModel>& prepared,
                                              const engine::DecodeOptions& options) {
  return [prepared, options] {
    auto session = std::make_unique<engine::DecodeSession>(prepared, options);
    session->prepare({1, 1}, passes::DecodeResult::tokens);
    return session;
  };
}

/// Sessions of the instances that read prompts.
void add_prefill(TextServices::Model& services, const RunConfig& run, const PrefillOptions& prefill,
                 const std::shared_ptr<const engine::DecodeModel>& prepared, engine::DecodeOptions options) {
  services.prefill_instances = run.prefill_instances.value_or(prefill.prefill_instances);
  base::require(services.prefill_instances == 0 || options.service == nullptr,
                "prefill instances are of one process: the ranks of a job have none");
  const int threads = run.prefill_threads > 0 ? run.prefill_threads : prefill.prefill_threads;
  if (threads > 0) options.threads = threads;
  options.store = nullptr;  // pages lie with the instance that answers
  services.make_prefill = session_maker(prepared, options);
}

}  // namespace

GenerativeModel::Parts GenerativeModel::load(const ModelSource& source, const ModelHost& host) {
  Parts parts;
  model::Model model = open_model(source.path, host.options.others);
  parts.tokenizer = data::open_tokenizer(model.directory);
  parts.chat_template = data::ChatTemplate::of_directory(model.directory);
  parts.end_tokens = model::hf::end_tokens(model);
  parts.add_turn_end();
  engine::DecodeOptions options = session_options(RunConfig::of(source.config.parameters), host.options);
  options.service = host.options.service;
  if (options.service != nullptr) options.model_key = follow_key(source);
  options.store = host.pages;
  const PrefillOptions& prefill = host.options.texts.prefill;
  if (options.store != nullptr || !prefill.prefill_from.empty() || prefill.pages_port >= 0)
    parts.services.id = options.store_model = engine::page_model(model.graph, options);
  const auto prepared = std::make_shared<const engine::DecodeModel>(model.graph, options, model.files);
  // Of a job this process is the first rank, of the first stage.
  const bool is_first = options.service != nullptr;
  parts.weight_bytes = is_first ? prepared->weight_bytes(0) : prepared->weight_bytes();
  for (int rank = 0; rank < (is_first ? 1 : prepared->strategy().world()); ++rank)
    parts.weight_bytes += engine::adapter_room_bytes(*prepared, rank);
  parts.adapters = engine::AdapterSlots::make(prepared->form().adapters, model.config);
  parts.add_drafter(source, host, prepared->form().vocabulary);
  parts.services.name = source.name;
  parts.services.max_waiting = static_cast<size_t>(source.config.queue.max_queue_size);
  parts.services.make = session_maker(prepared, options);
  add_prefill(parts.services, RunConfig::of(source.config.parameters), prefill, prepared, options);
  return parts;
}

namespace {

/// What a second of its steps costs, where prices are known.
std::optional<double> cost_of_second(const ModelSource& source, const ServeOptions& options) {
  const int cores = base::read_cpu_info().threads();
  const Prices prices = Prices::read(options.price_per_hour, options.prices, cores);
  if (!prices.is_known()) return std::nullopt;
  const int own = RunConfig::of(source.config.parameters).threads;
  const int threads = own > 0 ? own : options.threads > 0 ? options.threads : cores;
  return prices.per_busy_second(options.device, threads);
}

}  // namespace

GenerativeModel::GenerativeModel(const ModelSource& source, const ModelHost& host,
                                 const ModelMetrics* earlier)
    : GenerativeModel(load(source, host), source, host, earlier) {}

GenerativeModel::GenerativeModel(Parts parts, const ModelSource& source, const ModelHost& host,
                                 const ModelMetrics* earlier)
    : ServedModel(source, complete(source, host.options), host, earlier, 1),
      tokenizer_(std::move(parts.tokenizer)),
      template_(std::move(parts.chat_template)),
      end_tokens_(std::move(parts.end_tokens)),
      grammars_(*tokenizer_, end_tokens_),
      adapters_(std::move(parts.adapters)),
      border_(config()),
      queue_rules_(config(), host.options),
      shares_by_tenant_(host.options.texts.kept.cache_by_tenant),
      weight_bytes_(parts.weight_bytes),
      text_metrics_(host.metrics, source.name),
      call_host_{*this, *tokenizer_, text_metrics_, host.env.clock},
      tokenizing_(1, static_cast<size_t>(host.options.max_queue)) {
  if (adapters_.has_room()) {
    adapters_.load_all(source.root + "/adapters");
    text_metrics_.show_adapters(adapters_.size());
  } else if (base::file_exists(source.root + "/adapters")) {
    env().log.warning("serve", "adapters_left_out", {{"model", name()}, {"reason", "--max-adapters is 0"}});
  }
  parts.services.service.on_step = [this](const sched::TextStats& now) {
    metrics()->count_busy(0, text_metrics_.count_step(now));
  };
  services_ = std::make_unique<TextServices>(std::move(parts.services), adapters_, host);
  if (const auto cost = cost_of_second(source, host.options)) text_metrics_.show_cost(*cost);
}

GenerativeModel::~GenerativeModel() { GenerativeModel::stop(); }

void GenerativeModel::stop() {
  tokenizing_.stop();
  if (services_->stop()) return;
  env().log.error("serve", "instance_abandoned", {{"model", name()}, {"version", version()}});
}

ServedModel::MemoryUse GenerativeModel::memory() const {
  return {.weight_bytes = weight_bytes_, .scratch_bytes = services_->memory_bytes()};
}

std::string GenerativeModel::chat_prompt(const Chat& chat) const {
  if (!template_) base::fail_unsupported("model '", name(), "' has no chat template");
  return template_->render(chat.messages, chat.tools, chat.options);
}

ToolForm GenerativeModel::tool_form() const {
  if (template_ && template_->mentions("[TOOL_CALLS]")) return ToolForm::array;
  // Templates that know no tools get the form that most models were trained on.
  if (template_ && template_->mentions("\"parameters\"") && !template_->mentions("<tool_call>"))
    return ToolForm::bare;
  return ToolForm::tagged;
}

std::shared_ptr<const engine::LoadedAdapter> GenerativeModel::adapter(std::string_view wanted) const {
  std::shared_ptr<const engine::LoadedAdapter> found = adapters_.find(wanted);
  if (found == nullptr)
    base::fail(base::ErrorCode::not_found, "model '", name(), "' has no adapter '", wanted.substr(0, 200),
               "'");
  return found;
}

void GenerativeModel::load_adapter(const std::string& adapter, const std::string& directory) {
  adapters_.load(adapter, directory);
  text_metrics_.show_adapters(adapters_.size());
}

void GenerativeModel::unload_adapter(std::string_view adapter) {
  adapters_.unload(adapter);
  text_metrics_.show_adapters(adapters_.size());
}

/// An answer that is asked for, and what follows it.
struct GenerativeModel::Wanted {
  TextAsk ask;
  std::shared_ptr<TextCall> call;
};

void GenerativeModel::ask(size_t answers, const std::function<AskedText(size_t answer)>& make) {
  submit(answers, [&](size_t i) {
    AskedText one = make(i);
    auto call = std::make_shared<TextCall>(call_host_, one.ask, std::move(one.reader), true);
    return Wanted{std::move(one.ask), std::move(call)};
  });
}

void GenerativeModel::give_pages(const PagesRequest& asked, std::shared_ptr<PageReader> reader) {
  services_->give_pages(asked, asked.adapter.empty() ? nullptr : adapter(asked.adapter), std::move(reader));
}

sched::TextRequest GenerativeModel::request_of(TextAsk ask, const std::shared_ptr<TextCall>& call) {
  if (!ask.ignores_end)
    ask.generate.stop.insert(ask.generate.stop.end(), end_tokens_.begin(), end_tokens_.end());
  if (ask.grammar != nullptr) ask.generate.filter = sched::AnswerGrammar::filter(ask.grammar);
  if (shares_by_tenant_) {
    const std::string tenant = tenants().name_of(ask.tenant);
    ask.generate.salt = base::concat(tenant.size(), ":", tenant, ask.generate.salt);
  }
  call->set_tenant(tenants().find(tenants().is_on() ? ask.tenant : std::string()));
  InferRequest wish;
  wish.priority = ask.priority;
  wish.timeout_us = ask.timeout_us;
  wish.is_background = ask.is_background;
  sched::Standing standing = queue_rules_.standing(wish, env().clock.now_ns());
  standing.tenant = call->tenant().number;
  standing.weight = call->tenant().weight;
  standing.asked_ns = ask.received_ns;
  text_metrics_.count_asked(ask.generate.max_tokens);
  return {.generate = std::move(ask.generate), .standing = standing, .listener = call};
}

void GenerativeModel::submit(size_t answers, const std::function<Wanted(size_t answer)>& make) {
  std::vector<std::shared_ptr<TextCall>> calls;
  try {
    std::vector<sched::TextRequest> requests;
    for (size_t i = 0; i < answers; ++i) {
      Wanted one = make(i);
      calls.push_back(one.call);
      requests.push_back(request_of(std::move(one.ask), one.call));
      services_->answering().limits().check(requests.back().generate);  // before the next copy of its prompt
    }
    services_->answering().submit_all(std::move(requests));
  } catch (const base::Error& e) {
    for (const std::shared_ptr<TextCall>& call : calls) call->count_refusal();
    // It never fits, which is the request's fault, unlike a queue that is full.
    if (e.code() == base::ErrorCode::exhausted && e.message().starts_with("prompt and answer"))
      throw base::Error(base::ErrorCode::invalid_argument, e.message());
    throw;
  }
}

TextAsk GenerativeModel::ask_of(InferRequest& request) const {
  TextAsk ask;
  ask.generate.max_tokens = kUsualTokens;
  ask.tenant = request.tenant;
  ask.priority = request.priority;
  ask.timeout_us = request.timeout_us;
  const std::vector<std::optional<WireTensor>> given = border_.take_given(request);
  const std::string& text = given[0]->strings[0];
  ask.generate.prompt = tokenizer_->encode(text);
  if (given[1]) ask.stop = given[1]->strings;
  base::require(ask.stop.size() <= kMostStops, kStop, ": more than ", kMostStops, " texts");
  for (const std::string& stop : ask.stop)
    base::require(stop.size() <= kMostStopBytes, kStop, ": a text of more than ", kMostStopBytes, " bytes");
  for (size_t i = 0; i < settings().size(); ++i) {
    if (given[2 + i]) settings()[i].set(ask, given[2 + i]->values.to_doubles().at(0));
  }
  if (const size_t at = 2 + settings().size(); at < given.size() && given[at])
    ask.generate.adapter = adapter(given[at]->strings[0]);
  return ask;
}

/// Long texts are tokenized on a thread of the model: the caller's has other connections.
void GenerativeModel::infer(InferRequest request, InferSink sink) {
  const int64_t received_ns = sink.received_ns;
  const auto reader = std::make_shared<PartsReader>(*this, request, std::move(sink));
  try {
    if (!reader->call().takes_parts())
      base::fail_unsupported("this call doesn't support models with decoupled transaction policy: ask '",
                             name(), "' by ModelStreamInfer, generate or generate_stream");
    if (text_bytes(request) <= kShortText) return begin(request, reader, received_ns);
    tokenizing_.submit(
        [this, reader, received_ns, given = std::make_shared<InferRequest>(std::move(request))] {
          try {
            begin(*given, reader, received_ns);
          } catch (const std::exception&) {
            reader->call().count_refusal();
            reader->call().drop(sched::current_error());
          }
        });
  } catch (const base::Error&) {
    reader->call().count_refusal();
    throw;
  }
}

void GenerativeModel::begin(InferRequest& request, const std::shared_ptr<PartsReader>& reader,
                            int64_t received_ns) {
  TextAsk ask = ask_of(request);
  ask.received_ns = received_ns;
  reader->call().set_tenant(tenants().find(tenants().is_on() ? ask.tenant : std::string()));
  const auto call = std::make_shared<TextCall>(call_host_, ask, reader, false);
  reader->follow(call);
  try {
    submit(1, [&](size_t) { return Wanted{std::move(ask), call}; });
  } catch (const base::Error&) {
    reader->follow(nullptr);
    throw;
  }
}

}  // namespace trireme::serve
