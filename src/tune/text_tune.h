// The `tune` verb for language models: from goals for the first token and each further one to the server's
// options, by loads on real servers.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tune/search.h"
#include "tune/text_search.h"
#include "tune/tune_options.h"

namespace trireme::tune {

struct TextTuneResult {
  std::string name;                  ///< of the model in the repository
  std::vector<TextTrial> trials;     ///< in the order in which they were made
  size_t best = 0;                   ///< of them
  bool is_reached = false;           ///< the goals
  std::vector<std::string> command;  ///< that serves the best
  size_t resumed = 0;                ///< measurements that an earlier run had left
  double seconds = 0;
};

/// Does everything and writes into options.out: repository/<name> with a link to the model, result.json,
/// report.md, journal.jsonl. Throws for a model that continues no texts and options that do not go together.
TextTuneResult tune_texts(const TuneOptions& options, const Progress& progress);

std::string text_report(const TextTuneResult& result, const TuneOptions& options);
std::string markdown_report(const TextTuneResult& result, const TuneOptions& options);
base::Json json_report(const TextTuneResult& result, const TuneOptions& options);

}  // namespace trireme::tune
