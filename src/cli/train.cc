// trireme train: trains a model by one configuration file; stops cleanly on SIGINT and SIGTERM, and goes on
// later.
#include <csignal>
#include <filesystem>
#include <iostream>
#include <pthread.h>

#include "base/file.h"
#include "cli/verb.h"
#include "compile/program.h"
#include "train/task.h"
#include "train/weights.h"

namespace trireme::cli {
namespace {

/// The run was interrupted and saved: `--resume auto` goes on. The number is EX_TEMPFAIL of sysexits.h.
constexpr int kInterrupted = 75;

struct TrainCommand {
  std::string file;
  std::vector<std::string> set;
  std::string resume;
  bool quiet = false;
  bool check = false;
  bool program = false;
  bool markdown = false;

  void fields(base::OptionList& f) {
    f.add("file", &file, "configuration in YAML (docs/config.md); may be left out if --set says it all")
        .positional();
    f.add("set", &set, "section.key=value over the file; also as --section.key value; may be repeated");
    f.add("resume", &resume,
          "auto: from the newest checkpoint of the run directory if there is one; or a path");
    f.add("quiet", &quiet, "do not print the configuration");
    f.add("check", &check, "stop before the first step: configuration, data and model fit each other");
    f.add("program", &program, "print the steps and the memory plan of the compiled training step");
    f.add("markdown", &markdown, "print the page of all configuration keys");
  }
};

/// "--optimizer.lr 0.1" and "--optimizer.lr=0.1" become "--set optimizer.lr=0.1".
std::vector<std::string> expand_keys(std::span<const std::string> words) {
  std::vector<std::string> out;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    const size_t equals = word.find('=');
    const bool is_key = word.starts_with("--") && word.substr(0, equals).find('.') != std::string::npos;
    if (!is_key) {
      out.push_back(word);
      continue;
    }
    out.push_back("--set");
    if (equals == std::string::npos) {
      base::require(i + 1 < words.size(), "option '", word, "' needs a value");
      out.push_back(word.substr(2) + "=" + words[++i]);
    } else {
      out.push_back(word.substr(2));
    }
  }
  return out;
}

/// Holds SIGINT and SIGTERM back in all threads, and looks for them when asked: no handler, no global.
class StopSignals {
 public:
  StopSignals() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGINT);
    sigaddset(&set_, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set_, nullptr);
  }
  /// True from the first signal on. A second one then ends the program at once.
  bool seen() {
    const timespec now{};
    if (!seen_ && sigtimedwait(&set_, nullptr, &now) > 0) {
      seen_ = true;
      pthread_sigmask(SIG_UNBLOCK, &set_, nullptr);
    }
    return seen_;
  }

 private:
  sigset_t set_;
  bool seen_ = false;
};

void read_config(const TrainCommand& command, train::ConfigSections& sections) {
  if (!command.file.empty()) sections.read_yaml(base::read_file(command.file), command.file);
  for (const std::string& assignment : command.set) sections.assign(assignment);
  sections.check_required();
}

void save_trained(const train::TrainConfig& config, train::Trainer& trainer, model::Model model,
                  base::Env& env) {
  if (config.save.format == train::ExportFormat::none) return;
  const ir::Graph trained = trainer.session().trained_graph(config.save.average);
  std::map<std::string, tensor::Tensor> weights;
  for (const ir::Value& v : trained.values()) {
    if (v.kind == ir::ValueKind::param) weights.emplace(v.name, v.data);
  }
  model.graph = train::with_weights(std::move(model.graph), [&](const std::string& name) {
    const auto found = weights.find(name);
    return found == weights.end() ? nullptr : &found->second;
  });
  const std::string path = train::save_model(model, config.run.path(), config.run.name, config.save.format);
  env.log.info("train", "saved", {{"model", path}});
}

int run_training(const TrainCommand& command, const train::TrainConfig& config,
                 const train::ConfigSections& sections, base::Env& env) {
  train::PreparedTask prepared = train::prepare_task(config, sections);
  std::cout << (command.quiet ? "" : sections.to_yaml()) << prepared.text << std::flush;
  StopSignals signals;  // before the threads of the trainer start, which inherit the mask
  train::Trainer trainer(config, std::move(prepared.task), env);
  if (command.program) {
    for (const compile::Program* program : trainer.programs()) {
      std::cout << compile::print_steps(*program) << compile::print_memory(*program) << std::flush;
    }
  }
  if (command.check) return 0;
  if (command.resume == "auto") {
    trainer.resume_auto();
  } else if (!command.resume.empty()) {
    trainer.resume(command.resume);
  } else {
    base::require(!std::filesystem::exists(config.run.path() + "/checkpoints/latest"), "'", config.run.path(),
                  "' holds a run already: give --resume auto, or another run.name or run.directory");
  }
  const train::RunResult result = trainer.run([&] { return signals.seen(); });
  env.log.info("train", result.interrupted ? "interrupted" : "done",
               {{"step", result.state.step}, {"directory", config.run.path()}});
  if (result.interrupted) return kInterrupted;
  save_trained(config, trainer, std::move(prepared.model), env);
  return 0;
}

}  // namespace

int train_main(std::span<const std::string> words, base::Env& env) {
  TrainCommand command;
  if (!parse(command, expand_keys(words), "train")) return 0;
  if (command.markdown) {
    std::cout << train::config_markdown();
    return 0;
  }
  train::TrainConfig config;
  train::ConfigSections sections;
  config.bind(sections);
  read_config(command, sections);
  return run_training(command, config, sections, env);
}

std::string train_markdown() { return options_markdown<TrainCommand>(); }

}  // namespace trireme::cli
