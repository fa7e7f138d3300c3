// The `tune` verb for language models.
#include "tune/text_tune.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <memory>

#include "base/error.h"
#include "base/files/file.h"
#include "base/machine/cpu_info.h"
#include "load/run/load_command.h"
#include "serve/repository/repository_files.h"
#include "tune/child_server.h"
#include "tune/journal.h"
#include "tune/model_directory.h"
#include "tune/subject.h"

namespace trireme::tune {
namespace {

namespace fs = std::filesystem;

constexpr double kQuantile = 0.9;  // of the goals
constexpr double kMostErrors = 0.01;
constexpr int64_t kTextsUnderWay = 3;  // answers that may be when a window ends, beside a twentieth of it

void check_text_options(const TuneOptions& o) {
  base::require(o.model.size() == 1, "one language model is tuned at a time");
  base::require(o.texts.ttft.ns >= 0 && o.texts.tpot.ns >= 0, "a goal must not be negative");
  base::require(
      o.goals().empty() && o.rate == 0 && o.concurrency == 0 && o.objective == Objective::throughput,
      "goals of texts are --ttft and --tpot alone: they go without --p50, --p95, --p99, --rate, "
      "--concurrency and --objective cost");
  base::require(o.variant.empty() && o.instances.empty() && o.max_batch.empty() && o.window.empty(),
                "a language model has one session: --ttft and --tpot go without --variant, --instances, "
                "--max-batch and --window");
  base::require(!o.texts.cache_types.empty() && !o.texts.sequences.empty() && !o.texts.chunks.empty(),
                "each of --cache-types, --sequences and --chunks needs a value");
  base::require(o.threads.size() <= 1, "--threads of a language model is one number");
}

/// Puts a link to the model into a repository: a directory as it is, a file in a directory of its own. Other
/// models there stay.
void write_repository(const std::string& repository, const std::string& name, const std::string& given) {
  const fs::path model = fs::canonical(given), place = fs::path(repository) / name;
  fs::create_directories(repository);
  fs::remove_all(place);
  if (fs::is_directory(model)) return fs::create_directory_symlink(model, place);
  fs::create_directory(place);
  fs::create_symlink(model, place / model.filename());
}

/// Loads servers and remembers what came of it.
class TextBench {
 public:
  TextBench(const TuneOptions& options, std::string name, Journal& journal, const Progress& progress)
      : o_(options), name_(std::move(name)), journal_(journal), progress_(progress) {}

  TextMeasurement measure(const TextCandidate& candidate, double rate);
  std::vector<std::string> flags(const TextCandidate& candidate) const;

 private:
  void start(const TextCandidate& candidate);
  load::LoadOptions load_options(double rate) const;
  TextMeasurement judged(const load::Measured& measured, double rate) const;

  const TuneOptions& o_;
  const std::string name_;
  Journal& journal_;
  const Progress& progress_;
  std::unique_ptr<ChildServer> server_;  // of `served_`
  std::string served_;
  int64_t loads_ = 0;  // of all servers: each has prompts of its own, which no server knows
};

std::vector<std::string> TextBench::flags(const TextCandidate& candidate) const {
  std::vector<std::string> words = candidate.flags();
  if (!o_.threads.empty()) words.insert(words.end(), {"--threads", std::to_string(o_.threads[0])});
  return words;
}

void TextBench::start(const TextCandidate& candidate) {
  if (served_ == candidate.id()) return;
  server_.reset();
  served_.clear();
  server_ = std::make_unique<ChildServer>("/proc/self/exe", o_.out + "/repository", name_,
                                          o_.out + "/server.log", flags(candidate));
  served_ = candidate.id();
}

load::LoadOptions TextBench::load_options(double rate) const {
  load::LoadOptions load;
  load.url = base::concat("http://127.0.0.1:", server_->port());
  load.model = name_;
  load.stream = true;
  load.text.completions = true;
  load.text.prompt_tokens = o_.texts.prompt_tokens;
  load.text.answer_tokens = o_.texts.answer_tokens;
  load.text.lengths = o_.texts.lengths;
  load.rate = rate;
  load.duration = o_.trial;
  load.warmup = {o_.trial.ns / 4};
  load.seed = o_.seed + (loads_ << 20);
  return load;
}

TextMeasurement TextBench::judged(const load::Measured& measured, double rate) const {
  const load::LoadResult& r = measured.result;
  TextMeasurement m{.rate = rate, .throughput = r.throughput()};
  m.peak_bytes = server_->peak_bytes();
  const bool has_failed = r.succeeded == 0 || r.error_share() > kMostErrors;
  m.miss = has_failed ? std::numeric_limits<double>::infinity() : 0;
  const auto judge = [&](double& shown, const base::Histogram& times, const base::Duration& goal) {
    if (times.count() > 0) shown = static_cast<double>(times.quantile(kQuantile));
    if (goal.ns > 0 && !has_failed) m.miss = std::max(m.miss, shown / static_cast<double>(goal.ns));
  };
  judge(m.first_ns, r.first_part, o_.texts.ttft);
  judge(m.token_ns, r.between_parts, o_.texts.tpot);
  const bool keeps_up = rate == 0 || r.scheduled - r.completed_in_window <= r.scheduled / 20 + kTextsUnderWay;
  const bool fits = o_.memory.bytes == 0 || m.peak_bytes <= o_.memory.bytes;
  m.holds = m.miss <= 1 && keeps_up && fits;
  return m;
}

base::Json to_json(const TextMeasurement& m) {
  return base::Json::object({{"throughput", m.throughput},
                             {"first_ns", m.first_ns},
                             {"token_ns", m.token_ns},
                             {"peak_bytes", m.peak_bytes},
                             {"miss", std::isfinite(m.miss) ? m.miss : -1.0},
                             {"holds", m.holds}});
}

TextMeasurement measurement_of(const base::Json& json, double rate) {
  TextMeasurement m{.rate = rate, .throughput = json.at("throughput").as_double()};
  m.first_ns = json.at("first_ns").as_double();
  m.token_ns = json.at("token_ns").as_double();
  m.peak_bytes = json.at("peak_bytes").as_int();
  m.miss = json.at("miss").as_double();
  if (m.miss < 0) m.miss = std::numeric_limits<double>::infinity();
  m.holds = json.at("holds").as_bool();
  return m;
}

TextMeasurement TextBench::measure(const TextCandidate& candidate, double rate) {
  // To whole hundredths, so that the name of a rate is the same in every run.
  rate = std::round(rate * 100) / 100;
  const std::string id = base::concat("texts ", candidate.id(), " rate ", rate);
  ++loads_;
  if (const base::Json* known = journal_.find(id)) return measurement_of(*known, rate);
  start(candidate);
  progress_(base::concat(candidate.id(),
                         rate > 0 ? base::concat(", ", rate, " requests a second") : ", one client"));
  const load::Report report = load::measure(load_options(rate), [](const std::string&) {});
  const TextMeasurement m = judged(report.runs.at(0), rate);
  journal_.add(id, to_json(m));
  return m;
}

/// What decides what a measurement means.
std::string text_key(const TuneOptions& o) {
  const base::CpuInfo cpu = base::read_cpu_info();
  std::string text =
      base::concat(files_hash(o.model[0]), ' ', cpu.model, ' ', cpu.allowed.size(), ' ', cpu.quota, ' ',
                   o.trial.ns, ' ', o.seed, ' ', o.texts.ttft.ns, ' ', o.texts.tpot.ns, ' ',
                   o.texts.prompt_tokens, ' ', o.texts.answer_tokens, ' ', o.memory.bytes);
  for (int64_t n : o.threads) text += base::concat(" t", n);
  if (!o.texts.lengths.empty()) text += base::read_file(o.texts.lengths);
  return base::concat(text_hash(text), '-', files_hash("/proc/self/exe"));
}

TextSpace space_of(const TextTuning& t) {
  TextSpace space{.cache_types = t.cache_types, .sequences = t.sequences, .chunks = t.chunks};
  space.weights.insert(space.weights.end(), t.weights.begin(), t.weights.end());
  return space;
}

}  // namespace

TextTuneResult tune_texts(const TuneOptions& options, const Progress& progress) {
  check_text_options(options);
  const base::SystemClock clock;
  const int64_t start_ns = clock.now_ns();
  const std::string& given = options.model[0];
  if (!fs::exists(given)) base::fail(base::ErrorCode::not_found, "no model at '", given, "'");
  TextTuneResult result{.name = options.name.empty() ? default_name(given) : options.name};
  serve::check_model_name(result.name);
  require_elsewhere(given, options.out);
  fs::create_directories(options.out);
  const std::string repository = options.out + "/repository";
  write_repository(repository, result.name, given);
  Journal journal(options.out + "/journal.jsonl", text_key(options));
  result.resumed = journal.resumed();
  TextBench bench(options, result.name, journal, progress);
  TextSearch search(space_of(options.texts),
                    [&](const TextCandidate& c, double rate) { return bench.measure(c, rate); });
  search.run();
  result.trials = search.trials();
  result.best = search.best();
  result.is_reached = search.is_reached();
  const bool has_served = std::any_of(result.trials.begin(), result.trials.end(),
                                      [](const TextTrial& t) { return t.failure.empty(); });
  if (!has_served)
    base::fail(base::ErrorCode::unavailable, "no configuration serves: ", result.trials[0].failure);
  result.command = {"trireme", "serve", "--model-repository", repository};
  const std::vector<std::string> flags = bench.flags(result.trials[result.best].candidate);
  result.command.insert(result.command.end(), flags.begin(), flags.end());
  result.seconds = static_cast<double>(clock.now_ns() - start_ns) * 1e-9;
  base::write_file_atomic(options.out + "/result.json",
                          json_report(result, options).dump({.indent = 1}) + "\n");
  base::write_file_atomic(options.out + "/report.md", markdown_report(result, options));
  return result;
}

}  // namespace trireme::tune
