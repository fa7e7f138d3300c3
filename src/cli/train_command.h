// The words of `trireme train`: what the verb and who launches it read from them.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/text/options.h"
#include "train/config/train_config.h"

namespace trireme::cli {

/// The run was interrupted and saved: `--resume auto` goes on. The number is EX_TEMPFAIL of sysexits.h.
inline constexpr int kInterrupted = 75;

struct TrainCommand {
  std::string file;
  std::vector<std::string> set;
  std::string strategy;
  std::string resume;
  bool quiet = false;
  bool check = false;
  bool program = false;
  bool markdown = false;

  void fields(base::OptionList& f) {
    f.add("file", &file, "configuration in YAML (docs/config.md); may be left out if --set says it all")
        .positional();
    f.add("set", &set, "section.key=value over the file; also as --section.key value; may be repeated");
    f.add("strategy", &strategy,
          "YAML file of the keys of section `parallel`, over the configuration; --dp N, --tp N, --pp N, "
          "--zero N and "
          "--sequence set single keys of it over both");
    f.add("resume", &resume,
          "auto: from the newest checkpoint of the run directory if there is one; or a path");
    f.add("quiet", &quiet, "do not print the configuration");
    f.add("check", &check, "stop before the first step: configuration, data and model fit each other");
    f.add("program", &program, "print the steps and the memory plan of the compiled training step");
    f.add("markdown", &markdown, "print the page of all configuration keys");
  }
};

/// "--optimizer.lr 0.1", "--optimizer.lr=0.1" and "--dp 2" become "--set section.key=value".
std::vector<std::string> expand_keys(std::span<const std::string> words);

/// The configuration file, the strategy over it, and single keys over both.
void read_config(const TrainCommand& command, train::ConfigSections& sections);

}  // namespace trireme::cli
