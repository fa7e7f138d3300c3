// The configuration of a training run: every section, its defaults, and what follows from them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/text/options.h"
#include "train/config/config_sections.h"
#include "train/report/run_log.h"

namespace trireme::train {

/// What is trained.
struct ModelOptions {
  std::string source;
  std::vector<std::string> config;
  std::string weights;
  std::vector<std::string> freeze;
  void fields(base::OptionList& f);
};

/// B = micro x accumulate x dp. The global batch is stated, the rest derived.
struct BatchOptions {
  int64_t global = 0;
  int64_t micro = 0;
  int64_t accumulate = 0;
  void fields(base::OptionList& f);
};

enum class NonFinite { skip, stop };

struct RunOptions {
  std::string name = "run";
  std::string directory;
  int64_t steps = 0;
  double epochs = 0;
  int64_t seed = 1;
  int threads = 0;
  std::string device = "cpu";
  bool host_fallback = true;
  bool graphs = true;
  base::ByteSize memory{0};
  NonFinite non_finite = NonFinite::skip;
  int64_t max_skips = 20;
  base::Duration rank_timeout{600 * base::kNsPerSecond};
  void fields(base::OptionList& f);
  /// The run directory: `directory`, or runs/NAME.
  std::string path() const;
};

struct EvalOptions {
  int64_t every = 0;
  int64_t batches = 0;
  bool at_start = false;
  bool at_end = true;
  bool average = false;
  void fields(base::OptionList& f);
};

enum class Metric { loss, accuracy };
enum class OnError { stop, go_on };

struct CheckpointOptions {
  int64_t every = 0;
  int keep = 2;
  int keep_best = 1;
  Metric metric = Metric::loss;
  bool asynchronous = true;
  OnError on_error = OnError::stop;
  void fields(base::OptionList& f);
};

enum class ExportFormat { by_source, onnx, huggingface, none };

struct ExportOptions {
  ExportFormat format = ExportFormat::by_source;
  bool average = false;
  void fields(base::OptionList& f);
};

/// How a step's samples are run: each data-parallel rank runs `micro` at a time, `accumulate` times; then one
/// update.
struct BatchPlan {
  int64_t global = 0;
  int64_t micro = 0;
  int64_t accumulate = 0;
  int64_t ranks = 1;  ///< data-parallel
  /// "64 = 8 micro x 4 accumulate x 2 dp".
  std::string text() const;
};

/// Derives what is 0 for `ranks` data-parallel ranks. Throws invalid_argument, showing the identity, for what
/// does not divide or contradicts.
BatchPlan plan_batch(const BatchOptions& options, int64_t ranks = 1);

/// Steps of the run: stated, or epochs x steps an epoch rounded to the nearest, at least 1. Throws
/// invalid_argument unless exactly one of the two is given.
int64_t plan_steps(const RunOptions& options, int64_t steps_per_epoch);

}  // namespace trireme::train
