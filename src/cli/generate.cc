// trireme generate: continues prompts with a language model; text as it comes, files of prompts, speed.
#include <algorithm>
#include <iostream>
#include <map>
#include <optional>

#include "base/files/file.h"
#include "cli/device_options.h"
#include "cli/generate_timing.h"
#include "cli/model_input.h"
#include "cli/verb.h"
#include "comm/mesh.h"
#include "comm/world.h"
#include "data/text/answer_text.h"
#include "data/text/tokenizer.h"
#include "engine/decode/decode_ranks.h"
#include "engine/ranks/inference_ranks.h"
#include "model/hf/generation.h"
#include "sched/token_scheduler.h"

namespace trireme::cli {
namespace {

enum class CacheType { f32, bf16, f16 };

struct GenerateOptions {
  std::string model;
  std::vector<std::string> prompt;
  std::vector<int64_t> prompt_ids;
  std::string batch_file, tokenizer, characters;
  std::vector<std::string> bench;
  int64_t max_tokens = 128;
  std::vector<std::string> stop;
  bool ignore_eos = false, json = false;
  engine::SamplingOptions sampling{.temperature = 0};
  DeviceOptions on;
  int threads = 0;
  std::vector<int64_t> cpus;
  passes::Precision precision = passes::Precision::f32;
  CacheType cache_type = CacheType::f32;
  base::ByteSize cache_bytes;
  passes::WeightOptions weights;
  engine::InferenceRanks ranks;
  int64_t page_tokens = 16, max_sequences = 64, chunk = 512, max_length = 0;
  bool share_prefixes = true;

  void fields(base::OptionList& f) {
    f.add("model", &model, "Hugging Face directory, run or checkpoint of `trireme train`, or zoo:NAME")
        .positional()
        .required();
    f.add("prompt", &prompt, "text to continue; may be given several times");
    f.add("prompt_ids", &prompt_ids, "a prompt as numbers of tokens; the answer is printed so too");
    f.add("batch_file", &batch_file,
          "JSON lines with `prompt` or `prompt_ids`, and any of max_tokens, stop and the sampling options");
    f.add("max_tokens", &max_tokens, "tokens of an answer at most").at_least(1);
    f.add("stop", &stop, "text that ends an answer, and is not part of it");
    f.add("ignore_eos", &ignore_eos, "go on behind the token that ends a text");
    sampling.fields(f);
    f.add("tokenizer", &tokenizer, "directory of the tokenizer; empty: the model's own");
    f.add("characters", &characters,
          "tokens are the characters of this text, on which the model was trained");
    f.add("json", &json, "one JSON object a prompt, in their order");
    f.add(
        "bench", &bench,
        "measure instead, with random tokens: prompt=512,new=128,batch=8; several times: one after another");
    on.fields(f);
    f.add("threads", &threads, "threads of the session; 0: all cores").at_least(0);
    f.add("cpus", &cpus, "pin thread i to the i-th of these cores");
    f.add_choice("precision", &precision, {"f32", "bf16", "f16", "fp8"}, "operands of products");
    weights.fields(f);
    f.add("tp", &ranks.tp,
          "ranks that each hold a part of the large weights and of the heads: of this process, or of a job")
        .at_least(0);
    f.add_choice("cache_type", &cache_type, {"f32", "bf16", "f16"}, "keys and values that are kept");
    f.add("cache_bytes", &cache_bytes,
          "memory for keys and values of each rank; 0: up to half of the device's");
    f.add("page_tokens", &page_tokens, "tokens of a page of keys and values").at_least(1);
    f.add("share_prefixes", &share_prefixes, "texts that begin alike share the pages of that beginning");
    f.add("max_sequences", &max_sequences, "prompts under way at a time").at_least(1);
    f.add("chunk", &chunk, "new tokens of one step; longer prompts take several").at_least(1);
    f.add("max_length", &max_length, "tokens of prompt and answer; 0: as many as the model knows")
        .at_least(0);
  }

  engine::DecodeOptions session() const {
    engine::DecodeOptions o;
    o.device = on.device;
    o.host_fallback = on.host_fallback;
    o.graphs = on.graphs;
    o.threads = threads;
    o.cpus.assign(cpus.begin(), cpus.end());
    o.precision = precision;
    o.weights = weights;
    o.strategy = ranks.read();
    constexpr tensor::DType kTypes[] = {tensor::DType::f32, tensor::DType::bf16, tensor::DType::f16};
    o.cache_type = kTypes[static_cast<size_t>(cache_type)];
    o.cache_bytes = cache_bytes.bytes;
    o.page_tokens = page_tokens;
    o.share_prefixes = share_prefixes;
    o.max_sequences = max_sequences;
    o.max_tokens = chunk;
    o.max_length = max_length;
    return o;
  }
};

/// One prompt of the command line or the batch file.
struct Job {
  std::string text;  ///< empty where ids were given
  engine::GenerateRequest request;
  std::vector<std::string> stop;
};

/// An answer under way.
struct Answer {
  Job job;
  std::optional<data::AnswerText> text;  ///< none: numbers of tokens
  std::vector<int64_t> tokens;
  engine::FinishReason finish = engine::FinishReason::none;
  double log_probability = 0;
};

class GenerateVerb {
 public:
  explicit GenerateVerb(GenerateOptions options) : o_(std::move(options)), model_(open_model(o_.model)) {
    if (!o_.tokenizer.empty() || !o_.characters.empty()) open_tokenizer();
    if (!o_.ignore_eos) end_ = model::hf::end_tokens(model_);
    prepared_ = std::make_shared<engine::DecodeModel>(model_.graph, o_.session());
    model_.graph = {};  // weights that were stored in another form need no memory any more
  }

  /// The ranks of a job of the model's strategy; null: all ranks are in this process.
  void open(comm::Mesh* mesh) {
    engine::DecodeOptions options = o_.session();
    options.mesh = mesh;
    session_ = std::make_unique<engine::DecodeSession>(prepared_, options);
  }
  /// What the other ranks of the job do.
  void follow(comm::Mesh& mesh) {
    engine::DecodeOptions options = o_.session();
    options.mesh = &mesh;
    engine::follow_decoding(prepared_, options);
  }
  const passes::Strategy& strategy() const { return prepared_->strategy(); }

  /// Ends the session, and with it those of the other ranks.
  void close() { session_.reset(); }
  engine::DecodeSession& session() { return *session_; }
  int run();
  void bench();

 private:
  void open_tokenizer();
  Job job(std::string text, std::vector<int64_t> ids);
  Job job_of_line(const base::Json& line);
  std::vector<Job> jobs();
  void take(const engine::GenerateEvent& event, sched::TokenScheduler& generator, bool shows);
  void end(Answer& answer, engine::FinishReason reason, bool shows);
  base::Json json_of(const Answer& answer) const;

  GenerateOptions o_;
  model::Model model_;
  std::unique_ptr<data::Tokenizer> tokenizer_;
  std::vector<int64_t> end_;
  std::shared_ptr<engine::DecodeModel> prepared_;
  std::unique_ptr<engine::DecodeSession> session_;
  std::map<int64_t, Answer> answers_;
};

/// Numbers of tokens need none, so it is opened where text is met.
void GenerateVerb::open_tokenizer() {
  if (!o_.characters.empty()) {
    tokenizer_ = data::character_tokenizer(base::read_file(o_.characters));
    return;
  }
  const std::string directory = o_.tokenizer.empty() ? model_.directory : o_.tokenizer;
  if (directory.empty())
    base::fail_invalid("'", o_.model, "' has no tokenizer; give --tokenizer, --characters or --prompt-ids");
  tokenizer_ = data::open_tokenizer(directory);
}

Job GenerateVerb::job(std::string text, std::vector<int64_t> ids) {
  Job job{.text = std::move(text), .request = {.prompt = std::move(ids)}, .stop = o_.stop};
  if (job.request.prompt.empty()) {
    if (tokenizer_ == nullptr) open_tokenizer();
    job.request.prompt = tokenizer_->encode(job.text);
    if (job.request.prompt.empty()) base::fail_invalid("the prompt '", job.text, "' has no tokens");
  }
  job.request.max_tokens = o_.max_tokens;
  job.request.stop = end_;
  job.request.sampling = o_.sampling;
  return job;
}

Job GenerateVerb::job_of_line(const base::Json& line) {
  std::vector<int64_t> ids;
  if (const base::Json* list = line.find("prompt_ids")) {
    for (const base::Json& id : list->as_array()) ids.push_back(id.as_int());
  }
  const std::string text = ids.empty() ? line.at("prompt").as_string() : "";
  Job made = job(text, std::move(ids));
  base::OptionList sampling(made.request.sampling);
  base::Json given = base::Json::object();
  for (const auto& [key, value] : line.as_object()) {
    if (key == "prompt" || key == "prompt_ids") continue;
    if (key == "max_tokens") {
      made.request.max_tokens = value.as_int();
    } else if (key == "stop") {
      made.stop.clear();
      for (const base::Json& s : value.as_array()) made.stop.push_back(s.as_string());
    } else {
      given.set(key, value);
    }
  }
  sampling.parse_json(given);
  return made;
}

std::vector<Job> GenerateVerb::jobs() {
  std::vector<Job> jobs;
  for (const std::string& text : o_.prompt) jobs.push_back(job(text, {}));
  if (!o_.prompt_ids.empty()) jobs.push_back(job("", o_.prompt_ids));
  if (!o_.batch_file.empty()) {
    const std::string text = base::read_file(o_.batch_file);
    for (size_t begin = 0, line = 1; begin < text.size(); ++line) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      const std::string_view content = std::string_view(text).substr(begin, end - begin);
      begin = end + 1;
      if (content.find_first_not_of(" \t\r") == std::string_view::npos) continue;
      try {
        jobs.push_back(job_of_line(base::parse_json(content)));
      } catch (const base::Error& e) {
        throw e.with(base::concat("'", o_.batch_file, "' line ", line));
      }
    }
  }
  if (jobs.empty()) base::fail_invalid("nothing to continue: give --prompt, --prompt-ids or --batch-file");
  return jobs;
}

base::Json GenerateVerb::json_of(const Answer& a) const {
  base::Json tokens = base::Json::array();
  for (int64_t id : a.tokens) tokens.push_back(id);
  base::Json json = base::Json::object();
  if (!a.job.text.empty()) json.set("prompt", a.job.text);
  if (a.text) json.set("text", a.text->text());
  json.set("tokens", std::move(tokens));
  json.set("finish", engine::to_string(a.finish));
  json.set("prompt_tokens", a.job.request.prompt.size());
  json.set("log_probability", a.log_probability);
  return json;
}

/// One prompt is shown as it comes, several when their turn is over.
void GenerateVerb::end(Answer& a, engine::FinishReason reason, bool shows) {
  if (a.text) {
    const std::string rest = a.text->finish();
    if (shows) std::cout << rest;
  }
  a.finish = reason;
}

void GenerateVerb::take(const engine::GenerateEvent& event, sched::TokenScheduler& generator, bool shows) {
  Answer& a = answers_.at(event.request);
  if (a.finish != engine::FinishReason::none) return;
  if (event.token >= 0) {
    a.tokens.push_back(event.token);
    a.log_probability += event.log_probability;
    if (a.text) {
      const std::string text = a.text->push(event.token);
      if (shows) std::cout << text << std::flush;
      if (a.text->is_stopped()) {
        end(a, engine::FinishReason::stop, shows);
        return generator.cancel(event.request);
      }
    } else if (shows) {
      std::cout << (a.tokens.size() > 1 ? "," : "") << event.token << std::flush;
    }
  }
  if (event.finish != engine::FinishReason::none) end(a, event.finish, shows);
}

int GenerateVerb::run() {
  std::vector<Job> list = jobs();
  const bool shows = list.size() == 1 && !o_.json;
  sched::TokenScheduler generator(*session_);
  for (Job& job : list) {
    const int64_t id = generator.add(job.request);
    Answer& a = answers_[id];
    if (tokenizer_ != nullptr) a.text.emplace(*tokenizer_, job.stop);
    a.job = std::move(job);
  }
  int64_t printed = 0;
  const auto print_done = [&] {
    for (auto at = answers_.find(printed);
         at != answers_.end() && at->second.finish != engine::FinishReason::none;
         at = answers_.find(printed)) {
      const Answer& a = at->second;
      if (o_.json) {
        std::cout << json_of(a).dump() << std::endl;
      } else if (!shows) {
        std::cout << "--- " << printed << "\n" << (a.text ? a.text->text() : "");
        for (size_t i = 0; !a.text && i < a.tokens.size(); ++i)
          std::cout << (i > 0 ? "," : "") << a.tokens[i];
      }
      if (!o_.json) std::cout << std::endl;
      answers_.erase(at);
      ++printed;
    }
  };
  while (!generator.is_idle()) {
    for (const engine::GenerateEvent& event : generator.step()) {
      if (answers_.contains(event.request)) take(event, generator, shows);
    }
    print_done();
  }
  return 0;
}

/// Every shape in its turn, on one session.
void GenerateVerb::bench() {
  GenerateBench bench(*session_, {.sampling = o_.sampling,
                                  .device = o_.on.device,
                                  .precision = o_.precision,
                                  .stores_weights = o_.weights.stores(),
                                  .page_tokens = o_.page_tokens,
                                  .ranks = o_.ranks.read().world()});
  for (const std::string& shape : o_.bench) {
    const BenchResult result = bench.run(parse_bench(shape));
    std::cout << (o_.json ? result.to_json().dump() + "\n" : result.text()) << std::flush;
  }
}

}  // namespace

int generate_main(std::span<const std::string> words, base::Env& env) {
  GenerateOptions options;
  if (!parse(options, words, "generate")) return 0;
  const bool measures = !options.bench.empty();
  GenerateVerb verb(std::move(options));
  const auto run = [&](comm::Mesh* mesh) {
    verb.open(mesh);
    if (measures) verb.bench();
    const int code = measures ? 0 : verb.run();
    const std::string names = verb.session().host_operators();
    if (!names.empty()) env.log.warning("runtime", "host_fallback", {{"operators", names}});
    verb.close();
    return code;
  };
  const int ranks = verb.strategy().world();
  if (ranks == 1 || comm::chosen_kind({}) != comm::RankKind::mpi) return run(nullptr);
  int code = 0;
  comm::run_ranks({.kind = comm::RankKind::mpi, .ranks = ranks}, [&](comm::Communicator& world) {
    comm::Mesh mesh(world, verb.strategy().mesh());
    world.rank() == 0 ? void(code = run(&mesh)) : verb.follow(mesh);
  });
  return code;
}

std::string generate_markdown() { return options_markdown<GenerateOptions>(); }

}  // namespace trireme::cli
