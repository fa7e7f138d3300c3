// The fields of a run's configuration, and the arithmetic of its batches.
#include "train/config/config.h"

#include <cmath>

#include "base/error.h"

namespace trireme::train {

void ModelOptions::fields(base::OptionList& f) {
  f.add("source", &source, "zoo:NAME, an ONNX file, or a Hugging Face directory").required();
  f.add("config", &config, "sizes of a zoo model, a mapping: {layers: 4, width: 128}");
  f.add("weights", &weights,
        "safetensors file, run directory or checkpoint to start from, by parameter name; empty: initial "
        "values");
  f.add("freeze", &freeze, "parameters whose name contains one of these are not trained");
}

void BatchOptions::fields(base::OptionList& f) {
  f.add("global", &global, "samples a step").required().at_least(1);
  f.add("micro", &micro, "samples run at once; 0: global / (accumulate x dp)").at_least(0);
  f.add("accumulate", &accumulate, "runs on each rank before an update; 0: global / (micro x dp)")
      .at_least(0);
}

void RunOptions::fields(base::OptionList& f) {
  f.add("name", &name, "name in logs and reports");
  f.add("directory", &directory, "where everything is written; empty: runs/NAME");
  f.add("steps", &steps, "length of the run in steps; or give epochs").at_least(0);
  f.add("epochs", &epochs, "length of the run in passes over the data; or give steps").at_least(0);
  f.add("seed", &seed, "of initial weights, data order, augmentation and dropout").at_least(0);
  f.add("threads", &threads,
        "threads of each rank's computation; 0: all processors, shared out among the ranks here. The result "
        "does not depend on it")
      .at_least(0)
      .at_most(1024);
  f.add("device", &device, "cpu, cuda, cuda:N, or emulated: CUDA kernels run on the host, for tests");
  f.add("host_fallback", &host_fallback,
        "run operators that the device has no kernel for on the CPU; without it they are refused");
  f.add("graphs", &graphs, "record a GPU's launches in the second run and replay them from then on");
  f.add("memory", &memory, "refuse programs that need more; 0B: what this process may use");
  f.add_choice("non_finite", &non_finite, {"skip", "stop"},
               "when a loss or gradient is not finite: leave the step out, or end the run");
  f.add("max_skips", &max_skips, "steps left out in a row that end the run").at_least(1);
  f.add(
      "rank_timeout", &rank_timeout,
      "how long ranks may wait for each other before the run ends, with a report of who waits for whom; 0s: "
      "for ever");
}

std::string RunOptions::path() const { return directory.empty() ? "runs/" + name : directory; }

void EvalOptions::fields(base::OptionList& f) {
  f.add("every", &every, "steps between evaluations on the validation data; 0: only at the end").at_least(0);
  f.add("batches", &batches, "micro-batches of an evaluation, from the first sample on; 0: all").at_least(0);
  f.add("at_start", &at_start, "evaluate before the first step of a new run");
  f.add("at_end", &at_end, "evaluate after the last step");
  f.add("average", &average, "evaluate the averaged weights where the optimizer keeps them");
}

void CheckpointOptions::fields(base::OptionList& f) {
  f.add("every", &every, "steps between checkpoints; 0: only at the end and on a signal").at_least(0);
  f.add("keep", &keep, "newest checkpoints that stay; 0: all").at_least(0);
  f.add("keep_best", &keep_best, "checkpoints with the best validation that stay besides").at_least(0);
  f.add_choice("metric", &metric, {"loss", "accuracy"}, "what is best: least loss or highest accuracy");
  f.add("asynchronous", &asynchronous, "write behind the training, from a copy in memory");
  f.add_choice("on_error", &on_error, {"stop", "go_on"}, "when a checkpoint cannot be written");
}

void ExportOptions::fields(base::OptionList& f) {
  f.add_choice("format", &format, {"by_source", "onnx", "huggingface", "none"},
               "what is written to model/ at the end; by_source: huggingface if the model came from such a "
               "directory, else onnx");
  f.add("average", &average, "the averaged weights where the optimizer keeps them");
}

std::string BatchPlan::text() const {
  return base::concat(global, " = ", micro, " micro x ", accumulate, " accumulate x ", ranks, " dp");
}

BatchPlan plan_batch(const BatchOptions& o, int64_t ranks) {
  base::require(o.global > 0, "batch.global must be given");
  BatchPlan plan{o.global, o.micro, o.accumulate, ranks};
  if (plan.micro == 0 && plan.accumulate == 0) plan.accumulate = 1;
  const auto divide = [&](int64_t by, const char* name) {
    base::require(o.global % (by * ranks) == 0, "global batch ", o.global, " is not a multiple of ", name,
                  " ", by, " x dp ", ranks, ": global = micro x accumulate x dp must hold in whole numbers");
    return o.global / (by * ranks);
  };
  if (plan.micro == 0) plan.micro = divide(plan.accumulate, "accumulate");
  if (plan.accumulate == 0) plan.accumulate = divide(plan.micro, "micro");
  base::require(plan.micro * plan.accumulate * ranks == o.global, "global batch ", o.global, " is not micro ",
                plan.micro, " x accumulate ", plan.accumulate, " x dp ", ranks);
  return plan;
}

int64_t plan_steps(const RunOptions& o, int64_t steps_per_epoch) {
  base::require((o.steps > 0) != (o.epochs > 0), "give exactly one of run.steps and run.epochs; found steps ",
                o.steps, ", epochs ", o.epochs);
  if (o.steps > 0) return o.steps;
  return std::max<int64_t>(1, std::llround(o.epochs * static_cast<double>(steps_per_epoch)));
}

}  // namespace trireme::train
