// A language model that continues texts.
#include "serve/generative/generative_model.h"

#include <algorithm>
#include <utility>

#include "base/files/file.h"
#include "base/machine/cpu_info.h"
#include "model/hf/directory.h"
#include "model/hf/generation.h"
#include "sched/current_error.h"
#include "serve/config/run_config.h"
#include "serve/models/call.h"
#include "serve/models/model_file.h"

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

ModelConfig complete(const ModelSource& source) {
  ModelConfig config = source.config;
  base::require(!config.sequence && !config.is_batched() && config.instances <= 1, "model '", source.name,
                "' continues texts, all of them in one session: it takes no sequence_batching, no "
                "max_batch_size and one instance");
  config.name = source.name;
  config.platform = "trireme_text";
  config.max_batch_size = 0;
  config.instances = 1;
  config.is_decoupled = true;
  config.inputs = {{.name = kText, .type = std::nullopt, .dims = {1}}};
  config.inputs.push_back({.name = kStop, .type = std::nullopt, .dims = {-1}, .is_optional = true});
  for (const Setting& s : settings())
    config.inputs.push_back({.name = s.name, .type = s.type, .dims = {1}, .is_optional = true});
  config.outputs = {{.name = kAnswer, .type = std::nullopt, .dims = {1}}};
  return config;
}

engine::DecodeOptions session_options(const ModelSource& source, const ModelHost& host) {
  const ServeOptions& options = host.options;
  const RunConfig run = RunConfig::of(source.config.parameters);
  base::require(options.service == nullptr,
                "language models are served by the ranks of one process (--tp), "
                "not by those of a job");
  engine::DecodeOptions o;
  options.cache.apply(o);
  o.cache_share = 0.25;  // other models live here too
  o.device = options.device;
  o.threads = run.threads > 0 ? run.threads : options.threads;
  o.precision = run.precision;
  o.weights = run.weights.value_or(options.weights);
  o.strategy = options.ranks.read();
  return o;
}

/// Gives the client of a tensor protocol the answer: a part for every piece of text, or one with all of it.
class PartsReader final : public TextReader {
 public:
  PartsReader(const ServedModel& model, const InferRequest& request, InferSink sink)
      : wants_one_(sink.wants_one_part),
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
      if (text_) end.timing = text_->timing();
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
    InferResponse part = call_.head();
    part.is_final = false;
    if (!wish_.empty())
      part.outputs.push_back({.tensor = {.name = kAnswer, .dims = {1}, .strings = {std::move(text)}},
                              .is_binary = wish_[0].is_binary});
    call_.give_part(std::move(part), 0, 0);
  }

  const bool wants_one_;
  const std::vector<AnswerWish> wish_;
  Call call_;
  std::string whole_;
  std::shared_ptr<const TextCall> text_;  // that tells this one, until the end
};

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

struct GenerativeModel::Parts {
  std::unique_ptr<data::Tokenizer> tokenizer;
  std::optional<data::ChatTemplate> chat_template;
  std::vector<int64_t> end_tokens;
  int64_t weight_bytes = 0;
  sched::TextService::MakeSession make;
};

/// Models that answer in turns end them with the tokenizer's last token, whatever the configuration lists.
void GenerativeModel::add_turn_end(Parts& parts) {
  if (!parts.chat_template) return;
  const std::string last = parts.chat_template->end_token();
  const auto id = last.empty() ? std::nullopt : parts.tokenizer->find(last);
  auto& ends = parts.end_tokens;
  if (id && std::find(ends.begin(), ends.end(), *id) == ends.end()) ends.push_back(*id);
}

GenerativeModel::Parts GenerativeModel::load(const ModelSource& source, const ModelHost& host) {
  Parts parts;
  model::Model model = open_model(source.path, host.options.others);
  parts.tokenizer = data::open_tokenizer(model.directory);
  parts.chat_template = data::ChatTemplate::of_directory(model.directory);
  parts.end_tokens = model::hf::end_tokens(model);
  add_turn_end(parts);
  const engine::DecodeOptions options = session_options(source, host);
  const auto prepared = std::make_shared<const engine::DecodeModel>(model.graph, options);
  for (const ir::Value& v : prepared->form().graph.values())
    parts.weight_bytes += v.data.defined() ? static_cast<int64_t>(v.data.bytes()) : 0;
  parts.make = [prepared, options] {
    auto session = std::make_unique<engine::DecodeSession>(prepared, options);
    session->prepare({1, 1}, passes::DecodeResult::tokens);
    return session;
  };
  return parts;
}

GenerativeModel::GenerativeModel(const ModelSource& source, const ModelHost& host,
                                 const ModelMetrics* earlier)
    : GenerativeModel(load(source, host), source, host, earlier) {}

GenerativeModel::GenerativeModel(Parts parts, const ModelSource& source, const ModelHost& host,
                                 const ModelMetrics* earlier)
    : ServedModel(source, complete(source), host, earlier, 1),
      tokenizer_(std::move(parts.tokenizer)),
      template_(std::move(parts.chat_template)),
      end_tokens_(std::move(parts.end_tokens)),
      border_(config()),
      queue_rules_(config(), host.options),
      step_timeout_ns_(host.options.instance_timeout.ns),
      weight_bytes_(parts.weight_bytes),
      text_metrics_(host.metrics, source.name),
      call_host_{*this, *tokenizer_, text_metrics_, host.env.clock} {
  service_ = std::make_unique<sched::TextService>(
      std::move(parts.make),
      sched::TextService::Options{
          .max_waiting = static_cast<size_t>(host.options.max_queue),
          .on_step = [this](const sched::TextStats& now) { text_metrics_.count_step(now); }},
      host.env.clock);
}

GenerativeModel::~GenerativeModel() {
  GenerativeModel::stop();
  if (is_abandoned_) static_cast<void>(service_.release());
}

void GenerativeModel::stop() {
  constexpr int64_t kPatienceNs = 2 * base::kNsPerSecond;
  if (service_->stop(is_well() ? INT64_MAX : kPatienceNs)) return;
  is_abandoned_ = true;
  env().log.error("serve", "instance_abandoned", {{"model", name()}, {"version", version()}});
}

bool GenerativeModel::is_well() const {
  return step_timeout_ns_ == 0 || service_->step_ns() < step_timeout_ns_;
}

ServedModel::MemoryUse GenerativeModel::memory() const {
  return {.weight_bytes = weight_bytes_, .scratch_bytes = service_->memory_bytes()};
}

std::string GenerativeModel::chat_prompt(const Chat& chat) const {
  if (!template_) base::fail_unsupported("model '", name(), "' has no chat template");
  return template_->render(chat.messages, chat.tools, chat.options);
}

void GenerativeModel::ask(TextAsk ask, std::shared_ptr<TextReader> reader) {
  const auto call = std::make_shared<TextCall>(call_host_, ask, std::move(reader), true);
  submit(std::move(ask), call);
}

void GenerativeModel::submit(TextAsk ask, const std::shared_ptr<TextCall>& call) {
  try {
    if (!ask.ignores_end)
      ask.generate.stop.insert(ask.generate.stop.end(), end_tokens_.begin(), end_tokens_.end());
    call->set_tenant(tenants().find(tenants().is_on() ? ask.tenant : std::string()));
    InferRequest wish;
    wish.priority = ask.priority;
    wish.timeout_us = ask.timeout_us;
    sched::Request place;
    queue_rules_.apply(wish, env().clock.now_ns(), place);
    text_metrics_.count_asked(ask.generate.max_tokens);
    service_->submit({.generate = std::move(ask.generate),
                      .standing = {.priority = place.priority,
                                   .tenant = call->tenant().number,
                                   .weight = call->tenant().weight,
                                   .deadline_ns = place.deadline_ns},
                      .listener = call});
  } catch (const base::Error& e) {
    call->count_refusal();
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
  for (size_t i = 0; i < settings().size(); ++i) {
    if (given[2 + i]) settings()[i].set(ask, given[2 + i]->values.to_doubles().at(0));
  }
  return ask;
}

void GenerativeModel::infer(InferRequest request, InferSink sink) {
  const int64_t received_ns = sink.received_ns;
  const auto reader = std::make_shared<PartsReader>(*this, request, std::move(sink));
  TextAsk ask;
  try {
    if (!reader->call().takes_parts())
      base::fail_unsupported("this call doesn't support models with decoupled transaction policy: ask '",
                             name(), "' by ModelStreamInfer, generate or generate_stream");
    ask = ask_of(request);
    ask.received_ns = received_ns;
    reader->call().set_tenant(tenants().find(tenants().is_on() ? ask.tenant : std::string()));
  } catch (const base::Error&) {
    reader->call().count_refusal();
    throw;
  }
  const auto call = std::make_shared<TextCall>(call_host_, ask, reader, false);
  reader->follow(call);
  try {
    submit(std::move(ask), call);
  } catch (const base::Error&) {
    reader->follow(nullptr);
    reader->call().count_refusal();
    throw;
  }
}

}  // namespace trireme::serve
