// trireme devices: what this machine has for programs to run on, and why not more.
#include <iostream>

#include "cli/verb.h"
#include "runtime/open_device.h"

namespace trireme::cli {
namespace {

struct DevicesOptions {
  bool json = false;
  void fields(base::OptionList& f) { f.add("json", &json, "print one JSON array"); }
};

}  // namespace

int devices_main(std::span<const std::string> words, base::Env&) {
  DevicesOptions options;
  if (!parse(options, words, "devices")) return 0;
  base::Json list = base::Json::array();
  for (const runtime::DeviceLine& line : runtime::list_devices()) {
    if (options.json) {
      list.push_back(
          base::Json::object({{"name", line.name}, {"text", line.text}, {"is_there", line.is_there}}));
    } else {
      std::cout << line.name << (line.is_there ? ": " : ": none: ") << line.text << "\n";
    }
  }
  if (options.json) std::cout << list.dump({.indent = 2}) << "\n";
  return 0;
}

std::string devices_markdown() { return options_markdown<DevicesOptions>(); }

}  // namespace trireme::cli
