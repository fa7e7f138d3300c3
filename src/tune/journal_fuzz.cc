// Fuzzes the journal of a search: any file opens, damaged lines count as not there, and what is added is
// found again.
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>

#include "base/error.h"
#include "tune/journal.h"
#include "tests/fuzz_bounds.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trireme;
  static const std::string kPath = "/tmp/trireme_fuzz_journal." + std::to_string(getpid());
  const fuzz::BoundedWork bounded(size);
  std::ofstream(kPath, std::ios::binary)
      .write(reinterpret_cast<const char*>(data), static_cast<int64_t>(size));
  { tune::Journal(kPath, "key").add("one", 1.5); }
  const tune::Journal again(kPath, "key");
  const base::Json* found = again.find("one");
  if (found == nullptr || found->as_double() != 1.5) std::abort();
  ::unlink(kPath.c_str());
  return 0;
}
