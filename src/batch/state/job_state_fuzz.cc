// libFuzzer entry: any bytes are a job's manifest or journal, or give a clear error; a journal is cut at most
// behind its whole records.
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/files/file.h"
#include "batch/state/journal.h"
#include "batch/state/manifest.h"
#include "batch/state/test_directory.h"
#include "tests/fuzz_bounds.h"

namespace {

constexpr uint64_t kJob = 77;
constexpr int64_t kChunks = 10;

template <class Body>
void must_be_clear(const Body& body) {
  try {
    body();
  } catch (const trireme::base::Error& e) {
    if (e.code() == trireme::base::ErrorCode::internal) __builtin_trap();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  const trireme::fuzz::BoundedWork bounded(size);
  using namespace trireme;
  static const std::string path = batch::fresh("fuzz") + "/file";
  const std::string_view content(reinterpret_cast<const char*>(bytes), size);
  batch::overwrite(path, content);
  must_be_clear([&] { batch::read_manifest(path); });
  must_be_clear([&] {
    int64_t before = 0, after = 0;
    batch::read_journal(path, kJob, [&](const batch::Record&) { ++before; });
    batch::Journal journal(path, kJob, kChunks);
    batch::read_journal(path, kJob, [&](const batch::Record&) { ++after; });
    if (before != after) __builtin_trap();
  });
  return 0;
}
