// Reads facts about the processor from the scheduler, cpuid, /proc and /sys.
#include "base/machine/cpu_info.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "base/error.h"

namespace trireme::base {
namespace {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// The value of the first line "key : value" in /proc/cpuinfo.
std::string cpuinfo_line(std::string_view key) {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with(key) && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "";
}

std::vector<int> allowed_processors() {
  std::vector<int> allowed;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) == 0) {
    for (int i = 0; i < CPU_SETSIZE; ++i) {
      if (CPU_ISSET(i, &set)) allowed.push_back(i);
    }
  }
  if (allowed.empty()) allowed.push_back(0);
  return allowed;
}

double control_group_quota() {
  std::istringstream v2(first_line("/sys/fs/cgroup/cpu.max"));  // "200000 100000" or "max 100000"
  double quota = 0, period = 0;
  if (v2 >> quota >> period && period > 0) return quota / period;
  std::istringstream v1(first_line("/sys/fs/cgroup/cpu/cpu.cfs_quota_us") + " " +
                        first_line("/sys/fs/cgroup/cpu/cpu.cfs_period_us"));
  if (v1 >> quota >> period && quota > 0 && period > 0) return quota / period;
  return 0;
}

/// The extensions that both the processor and the system support (__builtin_cpu_supports checks both).
std::vector<std::string> extensions() {
  std::vector<std::string> names;
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("sse4.2")) names.emplace_back("sse4.2");
  if (__builtin_cpu_supports("avx")) names.emplace_back("avx");
  if (__builtin_cpu_supports("avx2")) names.emplace_back("avx2");
  if (__builtin_cpu_supports("fma")) names.emplace_back("fma");
  if (__builtin_cpu_supports("avx512f")) names.emplace_back("avx512f");
  if (__builtin_cpu_supports("avx512bw")) names.emplace_back("avx512bw");
  if (__builtin_cpu_supports("avx512vnni")) names.emplace_back("avx512vnni");
  // The rest comes from cpuid leaf 7. A system that saves AVX-512 registers saves what these extensions use;
  // only AMX must be requested first.
  unsigned a = 0, b = 0, c = 0, d = 0;
  const bool avx512 = __builtin_cpu_supports("avx512f") != 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) != 0) {
    const unsigned amx = d;
    const unsigned fp16 = d >> 23 & 1;
    if (avx512 && fp16 != 0) names.emplace_back("avx512fp16");
    if (__get_cpuid_count(7, 1, &a, &b, &c, &d) != 0) {
      if (avx512 && (a >> 5 & 1) != 0) names.emplace_back("avx512bf16");
      if ((a >> 4 & 1) != 0 && __builtin_cpu_supports("avx2")) names.emplace_back("avxvnni");
    }
    if ((amx >> 22 & 1) != 0) names.emplace_back("amx-bf16");
    if ((amx >> 25 & 1) != 0) names.emplace_back("amx-int8");
  }
#elif defined(__aarch64__)
  names.emplace_back("neon");
#endif
  return names;
}

/// Size in bytes of the first processor's data or unified cache of this level; 0 if unknown.
int64_t cache_bytes(int level) {
  for (int index = 0; index < 8; ++index) {
    const std::string dir = concat("/sys/devices/system/cpu/cpu0/cache/index", index, "/");
    if (first_line(dir + "level") != std::to_string(level) || first_line(dir + "type") == "Instruction")
      continue;
    std::istringstream size(first_line(dir + "size"));  // "32K"
    int64_t value = 0;
    char unit = ' ';
    if (size >> value >> unit) return value << (unit == 'K' ? 10 : unit == 'M' ? 20 : 0);
  }
  return 0;
}

}  // namespace

int CpuInfo::threads() const {
  const int processors = std::max(1, static_cast<int>(allowed.size()));
  return quota > 0 ? std::clamp(static_cast<int>(std::ceil(quota)), 1, processors) : processors;
}

bool CpuInfo::has(std::string_view extension) const {
  return std::find(isa.begin(), isa.end(), extension) != isa.end();
}

Json CpuInfo::to_json() const {
  return Json::object({{"model", model},
                       {"processors", allowed.size()},
                       {"quota", quota},
                       {"isa", JsonArray(isa.begin(), isa.end())},
                       {"l1d_bytes", l1d_bytes},
                       {"l2_bytes", l2_bytes},
                       {"l3_bytes", l3_bytes}});
}

CpuInfo read_cpu_info() {
  CpuInfo info;
  info.model = cpuinfo_line("model name");
  info.allowed = allowed_processors();
  info.quota = control_group_quota();
  info.isa = extensions();
  info.l1d_bytes = cache_bytes(1);
  info.l2_bytes = cache_bytes(2);
  info.l3_bytes = cache_bytes(3);
  return info;
}

}  // namespace trireme::base
