// Reads memory figures from /proc and from the control group.
#include "base/machine/memory.h"

#include <algorithm>
#include <fstream>
#include <string>

namespace trireme::base {
namespace {

/// The value, in bytes, of the line "Key:   123 kB" in a /proc file; 0 if the line is absent.
int64_t proc_bytes(const char* path, const std::string& key) {
  std::ifstream file(path);
  for (std::string word; file >> word;) {
    int64_t kib = 0;
    if (word == key && file >> kib) return kib * 1024;
  }
  return 0;
}

/// The smallest limit among a control group and its ancestors.
int64_t least_limit(const std::string& mount, std::string group, const char* file_name) {
  int64_t least = INT64_MAX;
  for (;;) {
    if (group == "/") group.clear();
    int64_t bytes = 0;
    if (std::ifstream file(mount + group + file_name); file >> bytes && bytes > 0)  // "max" does not parse
      least = std::min(least, bytes);
    if (group.empty()) return least;
    group.resize(group.rfind('/') == std::string::npos ? 0 : group.rfind('/'));
  }
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
  // Lines read "hierarchy:controllers:/path"; a container may see its group as "/", or the host's full path.
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool is_v2 = controllers.empty();
    if (!is_v2 && ("," + controllers + ",").find(",memory,") == std::string::npos) continue;
    const std::string mount = is_v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
    limit = std::min(
        limit, least_limit(mount, line.substr(second + 1), is_v2 ? "/memory.max" : "/memory.limit_in_bytes"));
  }
  return limit;
}

}  // namespace trireme::base
