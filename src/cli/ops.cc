// trireme ops: lists the operators and checks that none has an unexplained gap.
#include <iostream>

#include "cli/verb.h"
#include "ops/completeness.h"
#include "ops/table.h"

namespace trireme::cli {
namespace {

struct OpsOptions {
  bool markdown = false;
  bool check = false;
  void fields(base::OptionList& f) {
    f.add("markdown", &markdown, "print the table as docs/ops.md has it");
    f.add("check", &check, "fail if an operator lacks its document line, kernel or expansion");
  }
};

}  // namespace

int ops_main(std::span<const std::string> words, base::Env&) {
  OpsOptions options;
  if (!parse(options, words, "ops")) return 0;
  if (options.check) {
    const std::vector<std::string> gaps = ops::completeness_gaps();
    for (const std::string& gap : gaps) std::cout << gap << "\n";
    std::cout << ops::table().all().size() << " operators, " << gaps.size() << " gaps\n";
    return gaps.empty() ? 0 : 1;
  }
  std::cout << ops::completeness_markdown();
  return 0;
}

std::string ops_markdown() { return options_markdown<OpsOptions>(); }

}  // namespace trireme::cli
