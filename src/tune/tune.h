// The `tune` verb: from a model and a goal to a configuration, with what was predicted beside what was
// measured.
#pragma once

#include <string>
#include <vector>

#include "tune/trial.h"

namespace trireme::tune {

struct TuneResult {
  Subject subject;
  Wish wish;
  FrontEnd front;
  CostTable costs;
  std::vector<Prediction> predictions;          ///< of all configurations, best first
  std::vector<std::vector<Prediction>> curves;  ///< of a few that differ, from light load to saturation
  std::vector<Trial> trials;
  int chosen_trial = -1;            ///< of `trials`; -1: nothing was measured, or nothing met the goal
  Prediction chosen;                ///< what is written: the best, or the nearest where no goal was met
  bool is_chosen_measured = false;  ///< its figures are those of a load on a real server
  bool is_reached = false;          ///< the goal; measured where trials were made
  size_t resumed = 0;               ///< measurements that an earlier run had left
  double seconds = 0;
};

/// Does everything and writes into options.out: repository/<name>/config.pbtxt with the model, result.json,
/// report.md, report.html, journal.jsonl. Throws for input that cannot be tuned.
TuneResult tune(const TuneOptions& options, const serve::OtherModels& others, const Progress& progress);

}  // namespace trireme::tune
