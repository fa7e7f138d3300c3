// trireme load: sends requests to a server on schedule and reports latency, throughput and whether the goals
// hold.
#include <iostream>

#include "base/file.h"
#include "cli/verb.h"
#include "load/load_command.h"

namespace trireme::cli {

int load_main(std::span<const std::string> words, base::Env&) {
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

std::string load_markdown() { return options_markdown<load::LoadOptions>(); }

}  // namespace trireme::cli
