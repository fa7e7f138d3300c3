// Turns the command line of `trireme train` into a configuration.
#include "cli/train_command.h"

#include "base/error.h"
#include "base/files/file.h"

namespace trireme::cli {
namespace {

/// "--dp" becomes "--parallel.dp" and "--sequence" "--parallel.sequence=true"; other words stay unchanged.
std::string full_key(const std::string& word) {
  if (word == "--sequence") return "--parallel.sequence=true";
  for (const char* axis : {"dp", "tp", "pp", "zero"}) {
    const std::string flag = base::concat("--", axis);
    if (word == flag || word.starts_with(flag + "=")) return "--parallel." + word.substr(2);
  }
  return word;
}

}  // namespace

std::vector<std::string> expand_keys(std::span<const std::string> words) {
  std::vector<std::string> out;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string word = full_key(words[i]);
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

void read_config(const TrainCommand& command, train::ConfigSections& sections) {
  if (!command.file.empty()) sections.read_yaml(base::read_file(command.file), command.file);
  if (!command.strategy.empty()) {
    sections.read_section("parallel", base::read_file(command.strategy), command.strategy);
  }
  for (const std::string& assignment : command.set) sections.assign(assignment);
  sections.check_required();
}

}  // namespace trireme::cli
