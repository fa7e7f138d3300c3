// trireme tune: finds batch sizes, window, instances, threads and precision with which a model meets a goal.
#include <iostream>

#include "cli/verb.h"
#include "tune/report.h"
#include "tune/text_tune.h"
#include "train/task.h"

namespace trireme::cli {

int tune_main(std::span<const std::string> words, base::Env&) {
  tune::TuneOptions options;
  if (!parse(options, words, "tune")) return 0;
  const tune::Progress progress = [](const std::string& step) { std::cerr << "tune: " << step << "\n"; };
  if (options.texts.is_asked()) {
    const tune::TextTuneResult result = tune::tune_texts(options, progress);
    std::cout << tune::text_report(result, options);
    return result.is_reached ? 0 : 1;
  }
  const serve::OtherModels checkpoints{
      .holds = train::has_checkpoint,
      .open = [](const std::string& path) { return train::model_of_checkpoint(path, {.places = {"."}}); },
      .fingerprint = train::find_checkpoint};
  const tune::TuneResult result = tune::tune(options, checkpoints, progress);
  std::cout << tune::text_report(result, options);
  return result.is_reached ? 0 : 1;
}

std::string tune_markdown() { return options_markdown<tune::TuneOptions>(); }

}  // namespace trireme::cli
