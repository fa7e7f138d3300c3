// What a search among servers of a language model found.
#include <cmath>

#include "base/report/svg_plot.h"
#include "tune/report_units.h"
#include "tune/text_tune.h"

namespace trireme::tune {
namespace {

using base::format_number;

std::string text_goals(const TuneOptions& o) {
  std::string text = "nine of ten answers";
  if (o.texts.ttft.ns > 0) text += " begin within " + to_string(o.texts.ttft);
  if (o.texts.tpot.ns > 0)
    text += base::concat(o.texts.ttft.ns > 0 ? " and" : "", " take ", to_string(o.texts.tpot),
                         " a token at most");
  return text;
}

/// The run that a trial is told by: the highest load that held, else the lowest.
const TextMeasurement* told(const TextTrial& t) {
  const TextMeasurement* best = nullptr;
  for (const TextMeasurement& m : t.runs) {
    const bool is_better = best == nullptr ||
                           (m.holds && (!best->holds || m.throughput > best->throughput)) ||
                           (!m.holds && !best->holds && m.miss < best->miss);
    if (is_better) best = &m;
  }
  return best;
}

/// Why a candidate was taken or not.
std::string trial_verdict(const TextTrial& t) {
  if (!t.failure.empty()) return "did not serve: " + t.failure;
  if (t.changed.empty()) return t.rate > 0 ? "the first" : "the first; it misses the goals";
  const std::string what = t.changed + (t.was_better ? ": kept" : ": no better");
  if (t.rate > 0) return what;
  const double asked = t.runs.empty() ? 0 : t.runs.front().rate;
  return what +
         (asked > 0 ? base::concat(", does not hold ", format_number(asked, 2), "/s") : ", misses the goals");
}

std::string line(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& w : words) text += (text.empty() ? "" : " ") + w;
  return text;
}

}  // namespace

std::string text_report(const TextTuneResult& r, const TuneOptions& o) {
  const TextTrial& best = r.trials.at(r.best);
  std::string text = base::concat(r.name, ": ", text_goals(o), "\n");
  if (const TextMeasurement* m = told(best); m != nullptr && r.is_reached) {
    text += base::concat("found: ", best.candidate.id(), ": ", format_number(best.rate, 2),
                         " requests a second; first token ", ms(m->first_ns), " ms, a token ",
                         ms(m->token_ns), " ms, ", mib(m->peak_bytes), " MiB\n");
  } else if (m != nullptr) {
    text += base::concat("no configuration meets the goals; the nearest is ", best.candidate.id(),
                         ": first token ", ms(m->first_ns), " ms, a token ", ms(m->token_ns), " ms\n");
  }
  for (const TextTrial& t : r.trials)
    text += base::concat("  ", t.candidate.id(), "  ", t.rate > 0 ? format_number(t.rate, 2) + "/s" : "-",
                         "  ", trial_verdict(t), "\n");
  return text + "serve it: " + line(r.command) + "\n";
}

std::string markdown_report(const TextTuneResult& r, const TuneOptions& o) {
  std::string text = base::concat(
      "# ", r.name, "\n\nGoal: ", text_goals(o), ". Traffic: ",
      o.texts.lengths.empty()
          ? base::concat("prompts of ", o.texts.prompt_tokens, " tokens, answers of ", o.texts.answer_tokens)
          : "lengths of '" + o.texts.lengths + "'",
      "; Poisson arrivals.\n\n", r.is_reached ? "Serve it:" : "Nearest to the goal:", "\n\n    ",
      line(r.command), "\n\n");
  text +=
      "| weights, cache, sequences, chunk | requests/s | first token, p90 ms | a token, p90 ms | peak MiB | "
      "loads | "
      "verdict |\n|---|---|---|---|---|---|---|\n";
  for (const TextTrial& t : r.trials) {
    const TextMeasurement* m = told(t);
    text += base::concat("| ", t.candidate.id(), " | ", t.rate > 0 ? format_number(t.rate, 2) : "-", " | ",
                         m ? ms(m->first_ns) : "-", " | ", m ? ms(m->token_ns) : "-", " | ",
                         m ? mib(m->peak_bytes) : "-", " | ", t.runs.size(), " | ", trial_verdict(t), " |\n");
  }
  return text +
         base::concat(
             "\nOne thing at a time is changed in the best so far; it is kept where it carries at least ",
             std::lround(100 * (TextSearch::kGain - 1)),
             " % more. A line's times are those of the highest load that held, or of the load that "
             "did not.\n");
}

base::Json json_report(const TextTuneResult& r, const TuneOptions& o) {
  base::Json trials = base::Json::array();
  for (const TextTrial& t : r.trials) {
    base::Json runs = base::Json::array();
    for (const TextMeasurement& m : t.runs)
      runs.push_back(base::Json::object({{"rate", m.rate},
                                         {"throughput", m.throughput},
                                         {"first_p90_ns", m.first_ns},
                                         {"token_p90_ns", m.token_ns},
                                         {"peak_bytes", m.peak_bytes},
                                         {"holds", m.holds}}));
    trials.push_back(base::Json::object({{"weights", t.candidate.weights},
                                         {"cache_type", t.candidate.cache_type},
                                         {"sequences", t.candidate.sequences},
                                         {"chunk", t.candidate.chunk},
                                         {"changed", t.changed},
                                         {"rate", t.rate},
                                         {"better", t.was_better},
                                         {"failure", t.failure},
                                         {"runs", std::move(runs)}}));
  }
  base::Json command = base::Json::array();
  for (const std::string& word : r.command) command.push_back(word);
  return base::Json::object({{"model", r.name},
                             {"goal", text_goals(o)},
                             {"reached", r.is_reached},
                             {"best", r.best},
                             {"command", std::move(command)},
                             {"trials", std::move(trials)},
                             {"resumed", r.resumed},
                             {"seconds", r.seconds}});
}

}  // namespace trireme::tune
