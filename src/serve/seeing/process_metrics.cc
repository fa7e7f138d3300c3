// Gauges and counters of this process and its machine, read from /proc.
#include "serve/seeing/process_metrics.h"

#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <fstream>

#include "base/files/directory.h"
#include "base/guarded.h"
#include "base/machine/memory.h"
#include "base/memory/memory_budget.h"

namespace trireme::serve {
namespace {

/// The value of a line "Key:   123" in a /proc file; 0 if it is absent.
double proc_value(const char* path, const std::string& key) {
  std::ifstream file(path);
  for (std::string word; file >> word;) {
    double value = 0;
    if (word == key && file >> value) return value;
  }
  return 0;
}

double cpu_seconds() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

double open_files() {
  std::error_code failed;
  return static_cast<double>(base::names_in("/proc/self/fd", failed).size());
}

double most_files() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  return static_cast<double>(limit.rlim_cur);
}

double memory_total() { return proc_value("/proc/meminfo", "MemTotal:") * 1024; }

double memory_used() { return memory_total() - proc_value("/proc/meminfo", "MemAvailable:") * 1024; }

/// The share of all processors' time that was not idle between two readings at least a second apart. An
/// earlier reading returns the last value, so that two scrapers do not disturb each other.
class CpuUse {
 public:
  double read(int64_t now_ns) {
    return state_.with([&](State& s) {
      const auto [busy, all] = ticks();
      if (s.all == 0 || (now_ns - s.at_ns >= base::kNsPerSecond && all > s.all)) {
        s.share = s.all == 0 ? busy / std::max(1.0, all) : (busy - s.busy) / (all - s.all);
        s.busy = busy;
        s.all = all;
        s.at_ns = now_ns;
      }
      return s.share;
    });
  }

 private:
  struct State {
    double busy = 0, all = 0, share = 0;
    int64_t at_ns = 0;
  };
  /// Ticks since the machine's start: user nice system idle iowait irq softirq steal.
  static std::pair<double, double> ticks() {
    std::ifstream file("/proc/stat");
    std::string word;
    file >> word;
    std::array<double, 8> t{};
    double all = 0;
    for (double& value : t) {
      file >> value;
      all += value;
    }
    return {all - t[3] - t[4], all};
  }
  base::Guarded<State> state_;
};

}  // namespace

void register_process_metrics(MetricRegistry& metrics, const base::Clock& clock) {
  const auto gauge = [&](const char* name, const char* help, std::function<double()> read) {
    metrics.gauge_from(name, help, {}, std::move(read));
  };
  const int64_t started_ns = clock.now_ns();
  const double started_s = static_cast<double>(clock.wall_ns()) * 1e-9;
  gauge("process_resident_memory_bytes", "Resident memory of this process",
        [] { return static_cast<double>(base::resident_bytes()); });
  metrics.counter_from("process_cpu_seconds_total", "Processor time of this process, user and system", {},
                       cpu_seconds);
  gauge("process_start_time_seconds", "When it started, since 1970-01-01 UTC", [=] { return started_s; });
  gauge("trireme_memory_limit_bytes", "What --memory-limit allows",
        [] { return static_cast<double>(base::process_memory().limit_bytes()); });
  for (const base::MemoryUse use : base::kMemoryUses) {
    metrics.gauge_from("trireme_memory_used_bytes", "Memory counted against that limit, by what it is for",
                       {{"kind", std::string(base::name_of(use))}},
                       [use] { return static_cast<double>(base::process_memory().used_bytes(use)); });
  }
  metrics.counter_from("trireme_memory_refused_total", "Times that memory was refused to keep to the limit",
                       {}, [] { return static_cast<double>(base::process_memory().refused()); });
  gauge("process_threads", "Threads of this process",
        [] { return proc_value("/proc/self/status", "Threads:"); });
  gauge("process_open_fds", "Open files and sockets", open_files);
  gauge("process_max_fds", "Most files and sockets that may be open", most_files);
  gauge("trireme_uptime_seconds", "Time since the start",
        [&clock, started_ns] { return static_cast<double>(clock.now_ns() - started_ns) * 1e-9; });
  gauge("nv_cpu_utilization", "CPU utilization rate [0.0 - 1.0]",
        [&clock, use = std::make_shared<CpuUse>()] { return use->read(clock.now_ns()); });
  gauge("nv_cpu_memory_total_bytes", "CPU total memory (RAM), in bytes", memory_total);
  gauge("nv_cpu_memory_used_bytes", "CPU used memory (RAM), in bytes", memory_used);
  // Always 0, as there is no such pool: dashboards divide by the total only if it is above 0.
  gauge("nv_pinned_memory_pool_total_bytes", "Pinned memory pool total memory size, in bytes",
        [] { return 0.0; });
  gauge("nv_pinned_memory_pool_used_bytes", "Pinned memory pool used memory size, in bytes",
        [] { return 0.0; });
}

}  // namespace trireme::serve
