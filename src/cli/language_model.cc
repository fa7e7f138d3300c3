// Opens a language model with its tokenizer, chat template, adapters and draft model.
#include "cli/language_model.h"

#include <algorithm>

#include "base/files/file.h"
#include "cli/model_input.h"
#include "comm/world.h"
#include "model/hf/adapter.h"
#include "model/hf/generation.h"

namespace trireme::cli {

void LanguageOptions::fields(base::OptionList& f) {
  f.add("model", &model,
        "Hugging Face directory, GGUF file, run or checkpoint of `trireme train`, or zoo:NAME")
      .positional()
      .required();
  f.add("max_tokens", &max_tokens, "tokens of an answer at most").at_least(1);
  f.add("stop", &stop, "text that ends an answer, and is not part of it");
  f.add("ignore_eos", &ignore_eos, "go on behind the token that ends a text");
  sampling.fields(f);
  f.add("tokenizer", &tokenizer, "directory or file of the tokenizer; empty: the model's own");
  f.add("characters", &characters, "tokens are the characters of this text, on which the model was trained");
  f.add("chat_template", &chat_template, "file of a chat template in Jinja; empty: the tokenizer's");
  on.fields(f);
  f.add("threads", &threads, "threads of the session; 0: all cores").at_least(0);
  f.add("cpus", &cpus, "pin thread i to the i-th of these cores");
  f.add_choice("precision", &precision, {"f32", "bf16", "f16", "fp8"}, "operands of products");
  weights.fields(f);
  ranks.fields(f);
  cache.fields(f);
  f.add("adapter", &adapter, "directory of an adapter (LoRA) as PEFT writes it; may be given several times");
  speculation.fields(f);
}

engine::DecodeOptions LanguageOptions::session() const {
  engine::DecodeOptions o;
  o.device = on.device;
  o.host_fallback = on.host_fallback;
  o.graphs = on.graphs;
  on.tell_kernels();
  o.threads = threads;
  o.cpus.assign(cpus.begin(), cpus.end());
  o.strategy = ranks.read();
  o.strategy.precision.compute = precision;
  o.strategy.weights = weights;
  o.counts_ahead = speculation.speculate != engine::Speculation::off;
  cache.apply(o);
  return o;
}

LanguageModel::LanguageModel(LanguageOptions options) : o_(std::move(options)), model_(open_model(o_.model)) {
  if (!o_.ignore_eos) end_ = model::hf::end_tokens(model_);
  make_room();
  prepared_ = std::make_shared<engine::DecodeModel>(model_.graph, o_.session(), model_.files);
  const auto slots = engine::AdapterSlots::make(prepared_->form().adapters, model_.config);
  for (const std::string& directory : o_.adapter) {
    try {
      adapters_.push_back(slots->load(directory));
    } catch (const base::Error& e) {
      throw e.with(base::concat("adapter '", directory, "'"));
    }
  }
  model_.graph = {};  // frees the original weights, if they were stored in another form
  o_.speculation.check();
  if (o_.speculation.speculate == engine::Speculation::draft) open_draft();
}

void LanguageModel::open_draft() {
  const std::string& name = o_.speculation.draft;
  try {
    const model::Model draft = open_model(name);
    const auto options = engine::draft_options(o_.session(), o_.speculation);
    draft_ = std::make_shared<engine::DecodeModel>(draft.graph, options, draft.files);
    // Only tokenizers of their own can show that both models have the same tokens.
    if (!draft.directory.empty() && !model_.directory.empty())
      data::require_same_tokens(*data::open_tokenizer(model_.directory),
                                *data::open_tokenizer(draft.directory));
  } catch (const base::Error& e) {
    throw e.with(base::concat("draft '", name, "'"));
  }
}

sched::TextSchedule LanguageModel::schedule(const base::Clock& clock) const {
  return {.clock = &clock, .drafter = drafter_.get(), .draft_tokens = o_.speculation.draft_tokens};
}

void LanguageModel::report(const sched::DraftCounts& counts, base::Env& env) {
  if (counts.tokens == 0) return;
  const double share = static_cast<double>(counts.accepted) / static_cast<double>(counts.tokens);
  env.log.info("cli", "speculation",
               {{"drafts", counts.drafts},
                {"tokens", counts.tokens},
                {"accepted", counts.accepted},
                {"share", share}});
}

/// Unless the options set limits, makes room for exactly the adapters that were given.
void LanguageModel::make_room() {
  if (o_.adapter.empty() || o_.cache.max_adapters > 0) return;
  o_.cache.max_adapters = static_cast<int64_t>(o_.adapter.size());
  o_.cache.max_adapter_rank = 1;
  for (const std::string& directory : o_.adapter)
    o_.cache.max_adapter_rank = std::max(o_.cache.max_adapter_rank, model::hf::adapter_rank(directory));
}

void LanguageModel::open(comm::Mesh* mesh) {
  engine::DecodeOptions options = o_.session();
  options.mesh = mesh;
  session_ = std::make_unique<engine::DecodeSession>(prepared_, options);
  drafter_ = engine::make_drafter(o_.speculation, session_->vocabulary(), draft_,
                                  engine::draft_options(options, o_.speculation));
}

int LanguageModel::run(const std::function<int()>& body, base::Env& env) {
  const auto lead = [&](comm::Mesh* mesh) {
    open(mesh);
    const int code = body();
    const std::string names = session_->ranks().first().host_operators();
    if (!names.empty()) env.log.warning("runtime", "host_fallback", {{"operators", names}});
    drafter_.reset();
    session_.reset();  // also ends the sessions of the other ranks
    return code;
  };
  const passes::Strategy& strategy = prepared_->strategy();
  if (strategy.world() == 1 || comm::chosen_kind({}) != comm::RankKind::mpi) return lead(nullptr);
  int code = 0;
  comm::run_ranks({.kind = comm::RankKind::mpi, .ranks = strategy.world()}, [&](comm::Communicator& world) {
    comm::Mesh mesh(world, strategy.mesh());
    if (world.rank() == 0) {
      code = lead(&mesh);
      return;
    }
    engine::DecodeOptions options = o_.session();
    options.mesh = &mesh;
    engine::follow_decoding(prepared_, options);
  });
  return code;
}

std::string LanguageModel::tokenizer_directory() const {
  return o_.tokenizer.empty() ? model_.directory : o_.tokenizer;
}

const data::Tokenizer& LanguageModel::tokenizer() {
  if (tokenizer_ != nullptr) return *tokenizer_;
  if (!o_.characters.empty()) {
    tokenizer_ = data::character_tokenizer(base::read_file(o_.characters));
    return *tokenizer_;
  }
  const std::string directory = tokenizer_directory();
  if (directory.empty())
    base::fail_invalid("'", o_.model, "' has no tokenizer; give --tokenizer, --characters or --prompt-ids");
  tokenizer_ = data::open_tokenizer(directory);
  return *tokenizer_;
}

const data::ChatTemplate& LanguageModel::chat_template() {
  if (template_) return *template_;
  const std::string directory = tokenizer_directory();
  if (!o_.chat_template.empty())
    template_ = data::ChatTemplate(base::read_file(o_.chat_template), data::special_tokens_of(directory));
  else if (!directory.empty())
    template_ = data::ChatTemplate::of_directory(directory);
  if (!template_)
    base::fail(base::ErrorCode::not_found, "'", o_.model, "' has no chat template; give --chat-template");
  // Chat models end their turns with the template's end token, even if the configuration does not list it.
  if (const std::string last = template_->end_token(); !last.empty() && !o_.ignore_eos) {
    const auto id = tokenizer().find(last);
    if (id && std::find(end_.begin(), end_.end(), *id) == end_.end()) end_.push_back(*id);
  }
  return *template_;
}

std::vector<int64_t> LanguageModel::encode_chat(const base::Json& messages, const base::Json& tools,
                                                const data::ChatOptions& options) {
  const std::string text = chat_template().render(messages, tools, options);
  std::vector<int64_t> ids = tokenizer().encode(text, false);
  if (ids.empty()) base::fail_invalid("the conversation has no tokens");
  return ids;
}

}  // namespace trireme::cli
