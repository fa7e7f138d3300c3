// Memory figures from /proc and the control group.
#include "base/memory.h"

#include <algorithm>
#include <fstream>
#include <string>

namespace trireme::base {
namespace {

/// The "Key:   123 kB" line of a /proc file, in bytes; 0 if absent.
int64_t proc_bytes(const char* path, const std::string& key) {
  std::ifstream file(path);
  for (std::string word; file >> word;) {
    int64_t kib = 0;
    if (word == key && file >> kib) return kib * 1024;
  }
  return 0;
}

}  // namespace

int64_t resident_bytes() { return proc_bytes("/proc/self/status", "VmRSS:"); }
int64_t peak_resident_bytes() { return proc_bytes("/proc/self/status", "VmHWM:"); }

bool reset_peak_resident() {
  std::ofstream file("/proc/self/clear_refs");
  file << '5' << std::flush;
  return file.good();
}

int64_t memory_limit_bytes() {
  int64_t limit = proc_bytes("/proc/meminfo", "MemTotal:");
  for (const char* path : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    int64_t bytes = 0;
    if (std::ifstream file(path); file >> bytes && bytes > 0) limit = std::min(limit, bytes);
  }
  return limit;
}

}  // namespace trireme::base
