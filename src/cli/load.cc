// trireme load: sends requests to a server on schedule and reports latency, throughput and whether the goals
// hold.
#include <iostream>

#include "base/error.h"
#include "base/file.h"
#include "cli/verb.h"
#include "load/compare.h"
#include "load/load_command.h"

namespace trireme::cli {
namespace {

base::Json read_result(const std::string& path) {
  try {
    return base::parse_json(base::read_file(path));
  } catch (const base::Error& e) {
    throw e.with(path);
  }
}

int compare_main(std::span<const std::string> words) {
  load::CompareOptions options;
  if (!parse(options, words, "load compare")) return 0;
  const load::Comparison comparison = load::compare(read_result(options.before), read_result(options.after));
  std::cout << load::comparison_text(comparison);
  if (!options.json.empty())
    base::write_file_atomic(options.json, load::comparison_json(comparison).dump({.indent = 1}) + "\n");
  return load::within(comparison, options.tolerance) ? 0 : 1;
}

}  // namespace

int load_main(std::span<const std::string> words, base::Env&) {
  if (!words.empty() && words[0] == "compare") return compare_main(words.subspan(1));
  load::LoadOptions options;
  if (!parse(options, words, "load")) return 0;
  const load::Report report =
      load::measure(options, [](const std::string& run) { std::cerr << "load: running " << run << "\n"; });
  std::cout << load::text_report(report);
  if (!options.json.empty())
    base::write_file_atomic(options.json, load::json_report(report).dump({.indent = 1}) + "\n");
  if (!options.html.empty()) base::write_file_atomic(options.html, load::html_report(report));
  return load::goals_met(report) ? 0 : 1;
}

std::string load_markdown() {
  return options_markdown<load::LoadOptions>() + "\n`trireme load compare BEFORE AFTER`\n\n" +
         options_markdown<load::CompareOptions>();
}

}  // namespace trireme::cli
