// The number of ranks for inference, from options or from the strategy file that training uses.
#include "engine/ranks/inference_ranks.h"

#include "base/error.h"
#include "base/files/file.h"
#include "base/text/yaml.h"

namespace trireme::engine {
namespace {

/// Of the cuts of an interleaved schedule those between its pp stages, when a stage holds `chunks` parts that
/// follow each other. Cuts that fit no such schedule stay, for the pipeline to refuse or to take.
std::vector<std::string> cuts_of_stages(const passes::Strategy& s) {
  const auto chunks = static_cast<size_t>(s.chunks), stages = static_cast<size_t>(s.pp);
  if (chunks == 1 || s.cuts.size() + 1 != chunks * stages) return s.cuts;
  std::vector<std::string> kept;
  for (size_t k = 1; k < stages; ++k) kept.push_back(s.cuts[chunks * k - 1]);
  return kept;
}

}  // namespace

void InferenceRanks::fields(base::OptionList& f) {
  constexpr int kMostRanks = 4096;  // as of a strategy's keys
  f.add("tp", &tp,
        "ranks that each hold a part of the large weights, and of the heads of a language model: of this "
        "process, or of a job; 0: as --strategy says, else 1")
      .at_least(0)
      .at_most(kMostRanks);
  f.add(
       "ep", &ep,
       "ranks that share out the experts of a mixture, whole ones each: as many as --tp, which it sets where "
       "that is not given; 0: as --strategy says, else experts are split like other weights")
      .at_least(0)
      .at_most(kMostRanks);
  f.add("pp", &pp,
        "stages of ranks that each hold some of the layers, with the keys and values of a language model's; "
        "0: as --strategy says, else 1")
      .at_least(0)
      .at_most(kMostRanks);
  f.add("strategy", &strategy,
        "file with the keys of the section `parallel` of a training: tp, pp, rules, cuts, …");
}

passes::Strategy InferenceRanks::read() const {
  passes::Strategy s;
  if (!strategy.empty()) {
    try {
      base::OptionList(s).parse_json(base::parse_yaml_value(base::read_file(strategy)));
    } catch (const base::Error& e) {
      throw e.with(base::concat("strategy '", strategy, "'"));
    }
  }
  if (tp > 0) s.tp = tp;
  if (pp > 0) s.pp = pp;
  if (ep > 0) s.ep = ep;
  if (ep > 1 && tp == 0 && s.tp == 1) s.tp = ep;
  s.dp = 1;
  s.zero = 0;
  s.sequence = false;
  s.cuts = cuts_of_stages(s);
  s.chunks = 1;
  s.schedule = passes::PipelineSchedule::one_f_one_b;
  return s;
}

}  // namespace trireme::engine
