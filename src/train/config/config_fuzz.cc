// Fuzzes configurations: any text is a configuration or gives a clear error; a configuration that was read is
// written in a form that reads back.
#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"
#include "train/config/config.h"
#include "tests/fuzz_bounds.h"

namespace {

using namespace trireme;

struct Config {
  train::ModelOptions model;
  train::BatchOptions batch;
  train::RunOptions run;
  train::CheckpointOptions checkpoint;
  train::ConfigSections sections;
  Config() {
    sections.add("model", model, "");
    sections.add("batch", batch, "");
    sections.add("run", run, "");
    sections.add("checkpoint", checkpoint, "");
  }
};

void check_round_trip(std::string_view text) {
  const base::Json value = base::parse_yaml(text).value;
  const std::string written = base::to_yaml(value);
  const base::Json again = base::parse_yaml(written).value;
  // Compared as text, because NaN does not equal itself.
  if (base::to_yaml(again) != written) __builtin_trap();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const fuzz::BoundedWork bounded(size);
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    check_round_trip(text);
    Config config;
    config.sections.read_yaml(text, "fuzz");
    Config again;
    again.sections.read_yaml(config.sections.to_yaml(), "again");
    if (again.sections.to_yaml() != config.sections.to_yaml()) __builtin_trap();
  } catch (const base::Error& e) {
    if (e.code() == base::ErrorCode::internal) __builtin_trap();
  }
  return 0;
}
