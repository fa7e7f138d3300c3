// What a verb of the program is: a name, a line of help, its options as documentation, and its main function.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/report/env.h"
#include "base/text/options.h"

namespace trireme::cli {

struct Verb {
  std::string name;
  std::string summary;
  /// Runs the verb with the words after its name; returns the exit code. Throws base::Error.
  int (*run)(std::span<const std::string> words, base::Env& env);
  /// Writes its options as Markdown, for docs/cli.md.
  std::string (*markdown)();
};

/// All verbs, in the order of the help text.
const std::vector<Verb>& verbs();

// One file per verb.
int run_main(std::span<const std::string> words, base::Env& env);
std::string run_markdown();
int inspect_main(std::span<const std::string> words, base::Env& env);
std::string inspect_markdown();
int export_main(std::span<const std::string> words, base::Env& env);
std::string export_markdown();
int quantize_main(std::span<const std::string> words, base::Env& env);
std::string quantize_markdown();
int generate_main(std::span<const std::string> words, base::Env& env);
std::string generate_markdown();
int tokenize_main(std::span<const std::string> words, base::Env& env);
std::string tokenize_markdown();
int chat_main(std::span<const std::string> words, base::Env& env);
std::string chat_markdown();
int ops_main(std::span<const std::string> words, base::Env& env);
std::string ops_markdown();
int serve_main(std::span<const std::string> words, base::Env& env);
std::string serve_markdown();
int batch_main(std::span<const std::string> words, base::Env& env);
std::string batch_markdown();
int train_main(std::span<const std::string> words, base::Env& env);
std::string train_markdown();
int data_main(std::span<const std::string> words, base::Env& env);
std::string data_markdown();
int data_rows_main(std::span<const std::string> words);
std::string data_rows_markdown();
int load_main(std::span<const std::string> words, base::Env& env);
std::string load_markdown();
int tune_main(std::span<const std::string> words, base::Env& env);
std::string tune_markdown();
int comm_main(std::span<const std::string> words, base::Env& env);
std::string comm_markdown();
int launch_main(std::span<const std::string> words, base::Env& env);
std::string launch_markdown();
int devices_main(std::span<const std::string> words, base::Env& env);
std::string devices_markdown();

/// Prints "usage: trireme VERB …" and the options on stdout.
void print_usage(const std::string& verb, const base::OptionList& list);

/// Parses flags into `options`. Returns false after printing help if the user asked for it.
template <class Options>
bool parse(Options& options, std::span<const std::string> words, const std::string& verb) {
  base::OptionList list(options);
  if (list.parse_flags(words)) return true;
  print_usage(verb, list);
  return false;
}

/// The Markdown table of an options struct with its defaults.
template <class Options>
std::string options_markdown() {
  Options options;
  return base::OptionList(options).markdown();
}

}  // namespace trireme::cli
