// Reads the configuration, checkpoints and log of a training run from outside of its process.
#include "cli/launch_train.h"

#include <sys/stat.h>

#include <algorithm>
#include <charconv>

#include "base/clock.h"
#include "base/error.h"
#include "base/files/file.h"
#include "base/text/json.h"
#include "cli/train_command.h"
#include "train/checkpoint/checkpoint.h"

namespace trireme::cli {
namespace {

/// The checkpoint of a directory ".../step-00000120".
std::optional<LaunchedTraining::Checkpoint> checkpoint_at(const std::string& directory) {
  struct stat facts {};
  if (::stat((directory + "/index.json").c_str(), &facts) != 0) return std::nullopt;
  LaunchedTraining::Checkpoint out{.wall_ns =
                                       facts.st_mtim.tv_sec * base::kNsPerSecond + facts.st_mtim.tv_nsec};
  const size_t digits = directory.find_first_of("0123456789", directory.rfind('/') + 1);
  if (digits != std::string::npos) {
    std::from_chars(directory.data() + digits, directory.data() + directory.size(), out.step);
  }
  return out;
}

}  // namespace

LaunchedTraining::LaunchedTraining(std::vector<std::string> words) : given_(std::move(words)) {
  TrainCommand command;
  base::OptionList list(command);
  base::require(list.parse_flags(expand_keys(given_)), "launch: the command only asks for help");
  train::ConfigSections sections;
  config_.bind(sections);
  read_config(command, sections);
  resume_ = command.resume;
  first_newest_ = newest();
}

int LaunchedTraining::ranks_that_fit(int most) const {
  const int replica = config_.parallel.tp * config_.parallel.pp;
  for (int dp = most / replica; dp >= 1; --dp) {
    try {
      train::plan_batch(config_.batch, dp);
      return dp * replica;
    } catch (const base::Error&) {  // the batch cannot be divided by this dp
    }
  }
  return 0;
}

/// Whether a restart repeats what the words resume from: a checkpoint of their choice, which is not the
/// newest one of the run directory as long as this launch has committed none.
bool LaunchedTraining::goes_on_from_given() const {
  return !resume_.empty() && resume_ != "auto" && newest() == first_newest_;
}

std::vector<std::string> LaunchedTraining::words(int ranks, bool again) const {
  const int replica = config_.parallel.tp * config_.parallel.pp;
  base::require(ranks % replica == 0, "launch: ", ranks, " ranks are not a multiple of tp ",
                config_.parallel.tp, " x pp ", config_.parallel.pp);
  std::vector<std::string> out;
  const bool from_newest = again && !goes_on_from_given() && newest();
  for (size_t i = 0; i < given_.size(); ++i) {
    const std::string& word = given_[i];
    const bool is_resume = word == "--resume" || word.starts_with("--resume=");
    if (!from_newest || !is_resume) {
      out.push_back(word);
    } else if (word == "--resume") {
      ++i;  // skips its value too
    }
  }
  if (ranks != config_.parallel.world()) {
    out.insert(out.end(), {"--parallel.dp", std::to_string(ranks / replica)});
  }
  if (from_newest) out.insert(out.end(), {"--resume", "auto"});
  return out;
}

std::optional<LaunchedTraining::Checkpoint> LaunchedTraining::newest() const {
  const std::string root = config_.run.path() + "/checkpoints";
  const std::string name = train::newest_checkpoint(root);
  return name.empty() ? std::nullopt : checkpoint_at(root + "/" + name);
}

std::optional<LaunchedTraining::Checkpoint> LaunchedTraining::restart_point() const {
  if (!goes_on_from_given()) return newest();
  try {
    return checkpoint_at(train::find_checkpoint(resume_));
  } catch (const base::Error&) {  // the restart will say what is wrong with it
    return std::nullopt;
  }
}

LaunchedTraining::LogView LaunchedTraining::look(int64_t up_to_step) const {
  const std::string path = config_.run.path() + "/log.jsonl";
  struct stat facts {};
  LogView view;
  if (::stat(path.c_str(), &facts) != 0) return view;
  view.file = facts.st_ino;
  const std::string text = base::read_file(path);
  for (size_t at = 0; (at = text.find("{\"event\":\"start\"", at)) != std::string::npos;) {
    const size_t end = text.find('\n', at);
    if (end == std::string::npos) break;
    const base::Json line =
        base::parse_json(std::string_view(text).substr(at, end - at), {.nan_and_infinity = true});
    if (line.get_or<int64_t>("step", 0) <= up_to_step) ++view.starts;
    at = end;
  }
  return view;
}

void LaunchedTraining::expect_restart() {
  const std::optional<Checkpoint> last = restart_point();
  resumed_step_ = last ? last->step : 0;
  before_ = look(resumed_step_);
  if (!last) before_.starts = 0;  // a run that starts from the beginning empties its log
}

bool LaunchedTraining::has_restarted() const {
  const LogView now = look(resumed_step_);
  return now.file != before_.file && now.starts > before_.starts;
}

}  // namespace trireme::cli
