// trireme generate: continues prompts with a language model; streams text, runs prompt files, measures speed.
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <map>
#include <optional>

#include "base/files/file.h"
#include "cli/answer_form.h"
#include "cli/generate_timing.h"
#include "cli/language_model.h"
#include "cli/verb.h"
#include "data/text/answer_text.h"
#include "sched/text/token_scheduler.h"

namespace trireme::cli {
namespace {

struct GenerateOptions {
  LanguageOptions language;
  AnswerFormOptions form;
  std::vector<std::string> prompt;
  std::vector<int64_t> prompt_ids;
  std::string batch_file;
  std::vector<std::string> bench;
  bool json = false, chat = false, profile = false;

  void fields(base::OptionList& f) {
    language.fields(f);
    f.add("prompt", &prompt, "text to continue; may be given several times");
    f.add("prompt_ids", &prompt_ids, "a prompt as numbers of tokens; the answer is printed so too");
    f.add("batch_file", &batch_file,
          "JSON lines with `prompt` or `prompt_ids`, and any of max_tokens, stop, the sampling options and "
          "`adapter`: "
          "a directory's last word, or null; else the first that is given");
    f.add("chat", &chat, "a prompt is what a user says: the chat template stands around it");
    form.fields(f);
    f.add("json", &json, "one JSON object a prompt, in their order");
    f.add(
        "bench", &bench,
        "measure instead, with random tokens: prompt=512,new=128,batch=8; several times: one after another");
    f.add("profile", &profile,
          "with --bench: also where the time of a prompt's chunk and of a decoding step goes, by kernel");
  }
};

/// One prompt, from the command line or the batch file.
struct Job {
  std::string text;  ///< empty if the prompt was given as token ids
  engine::GenerateRequest request;
  std::vector<std::string> stop;
};

base::Json user_turn(const std::string& text) {
  return base::Json::object({{"role", "user"}, {"content", text}});
}

/// An answer that is being generated.
struct Answer {
  Job job;
  std::optional<data::AnswerText> text;  ///< absent if tokens are shown as numbers
  std::vector<int64_t> tokens;
  engine::FinishReason finish = engine::FinishReason::none;
  double log_probability = 0;
};

class GenerateVerb {
 public:
  explicit GenerateVerb(GenerateOptions options) : o_(std::move(options)), model_(o_.language) {
    if (model_.has_tokenizer()) model_.tokenizer();
  }

  LanguageModel& model() { return model_; }
  int run(base::Env& env);
  void bench();

 private:
  Job job(std::string text, std::vector<int64_t> ids);
  Job job_of_line(const base::Json& line);
  std::vector<Job> jobs();
  std::shared_ptr<const engine::LoadedAdapter> adapter_named(const base::Json& name) const;
  /// Returns false if a stop text has ended the answer.
  bool take(const engine::GenerateEvent& event, bool shows);
  void run_together(bool shows, base::Env& env);
  void print_done(bool shows);
  void end(Answer& answer, engine::FinishReason reason, bool shows);
  base::Json json_of(const Answer& answer) const;

  GenerateOptions o_;
  LanguageModel model_;
  std::map<int64_t, Answer> answers_;
  int64_t printed_ = 0;
};

Job GenerateVerb::job(std::string text, std::vector<int64_t> ids) {
  Job job{.text = std::move(text), .request = {.prompt = std::move(ids)}, .stop = o_.language.stop};
  if (job.request.prompt.empty()) {
    job.request.prompt = o_.chat ? model_.encode_chat(base::Json::array({user_turn(job.text)}), {}, {})
                                 : model_.tokenizer().encode(job.text);
    if (job.request.prompt.empty()) base::fail_invalid("the prompt '", job.text, "' has no tokens");
  }
  job.request.max_tokens = o_.language.max_tokens;
  job.request.stop = model_.end_tokens();
  job.request.sampling = o_.language.sampling;
  if (!model_.adapters().empty()) job.request.adapter = model_.adapters()[0];
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
    if (key == "adapter") {
      made.request.adapter = adapter_named(value);
    } else if (key == "max_tokens") {
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

/// Finds an adapter by the last component of its directory; null selects the model without an adapter.
std::shared_ptr<const engine::LoadedAdapter> GenerateVerb::adapter_named(const base::Json& name) const {
  if (name.is_null()) return nullptr;
  for (size_t i = 0; i < o_.language.adapter.size(); ++i) {
    const std::filesystem::path path(o_.language.adapter[i]);
    const std::filesystem::path last = path.has_filename() ? path.filename() : path.parent_path().filename();
    if (last == name.as_string()) return model_.adapters()[i];
  }
  base::fail(base::ErrorCode::not_found, "no adapter '", name.as_string(), "' among those of --adapter");
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

/// Ends an answer and, if it is streamed, prints the rest of its text.
void GenerateVerb::end(Answer& a, engine::FinishReason reason, bool shows) {
  if (a.text) {
    const std::string rest = a.text->finish();
    if (shows) std::cout << rest;
  }
  a.finish = reason;
}

bool GenerateVerb::take(const engine::GenerateEvent& event, bool shows) {
  Answer& a = answers_.at(event.request);
  if (a.finish != engine::FinishReason::none) return true;
  if (event.token >= 0) {
    a.tokens.push_back(event.token);
    a.log_probability += event.log_probability;
    if (a.text) {
      const std::string text = a.text->push(event.token);
      if (shows) std::cout << text << std::flush;
      if (a.text->is_stopped()) {
        end(a, engine::FinishReason::stop, shows);
        return false;
      }
    } else if (shows) {
      std::cout << (a.tokens.size() > 1 ? "," : "") << event.token << std::flush;
    }
  }
  if (event.finish != engine::FinishReason::none) end(a, event.finish, shows);
  return true;
}

/// Prints the finished answers, in the order of their prompts.
void GenerateVerb::print_done(bool shows) {
  for (auto at = answers_.find(printed_);
       at != answers_.end() && at->second.finish != engine::FinishReason::none;
       at = answers_.find(printed_)) {
    const Answer& a = at->second;
    if (o_.json) {
      std::cout << json_of(a).dump() << std::endl;
    } else if (!shows) {
      std::cout << "--- " << printed_ << "\n" << (a.text ? a.text->text() : "");
      for (size_t i = 0; !a.text && i < a.tokens.size(); ++i) std::cout << (i > 0 ? "," : "") << a.tokens[i];
    }
    if (!o_.json) std::cout << std::endl;
    answers_.erase(at);
    ++printed_;
  }
}

void GenerateVerb::run_together(bool shows, base::Env& env) {
  sched::TokenScheduler generator(model_.session(), model_.schedule(env.clock));
  std::optional<AnswerForm> form;
  if (o_.form.any()) form.emplace(o_.form, model_.tokenizer(), model_.end_tokens());
  for (auto& [number, answer] : answers_) {
    if (form) answer.job.request.filter = form->filter();
    generator.add(answer.job.request);
  }
  while (!generator.is_idle()) {
    for (const engine::GenerateEvent& event : generator.step()) {
      if (event.error != nullptr) throw base::Error(*event.error);
      if (answers_.contains(event.request) && !take(event, shows)) generator.cancel(event.request);
    }
    print_done(shows);
  }
  LanguageModel::report(generator.draft_counts(), env);
}

int GenerateVerb::run(base::Env& env) {
  std::vector<Job> list = jobs();
  const bool shows = list.size() == 1 && !o_.json;
  const bool has_text =
      model_.has_tokenizer() || o_.form.any() ||
      std::any_of(list.begin(), list.end(), [](const Job& job) { return !job.text.empty(); });
  int64_t number = 0;
  for (Job& job : list) {
    Answer& a = answers_[number++];
    if (has_text) a.text.emplace(model_.tokenizer(), job.stop);
    a.job = std::move(job);
  }
  run_together(shows, env);
  return 0;
}

/// Measures every shape in turn, on one session.
void GenerateVerb::bench() {
  const LanguageOptions& l = o_.language;
  base::require(l.speculation.speculate == engine::Speculation::off,
                "--bench measures steps on random tokens, of which --speculate guesses none");
  base::require(l.ranks.read().pp == 1,
                "--bench counts the work of ranks that share each step; stages of --pp ",
                "take turns, each with work of its own");
  GenerateBench bench(model_.session(), {.sampling = l.sampling,
                                         .device = l.on.device,
                                         .precision = l.precision,
                                         .page_tokens = l.cache.page_tokens,
                                         .ranks = l.ranks.read().world(),
                                         .adapters = model_.adapters()});
  for (const std::string& shape : o_.bench) {
    const BenchResult result = bench.run(parse_bench(shape), o_.profile);
    std::cout << (o_.json ? result.to_json().dump() + "\n" : result.text()) << std::flush;
  }
}

}  // namespace

int generate_main(std::span<const std::string> words, base::Env& env) {
  GenerateOptions options;
  if (!parse(options, words, "generate")) return 0;
  const bool measures = !options.bench.empty();
  base::require(measures || !options.profile, "--profile goes with --bench");
  GenerateVerb verb(std::move(options));
  return verb.model().run(
      [&] {
        if (!measures) return verb.run(env);
        verb.bench();
        return 0;
      },
      env);
}

std::string generate_markdown() { return options_markdown<GenerateOptions>(); }

}  // namespace trireme::cli
