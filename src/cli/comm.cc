// trireme comm bench: bandwidth of the collectives by size, with the fitted latency and bandwidth.
#include <cstdio>
#include <iostream>

#include "base/machine/cpu_info.h"
#include "base/error.h"
#include "cli/verb.h"
#include "comm/bench.h"
#include "comm/world.h"
#include "runtime/device_ranks.h"
#include "runtime/open_device.h"

namespace trireme::cli {
namespace {

using base::Json;

// In the order of comm::Collective, followed by "all".
const std::vector<std::string> kOperations{"all_reduce", "reduce_scatter", "all_gather",
                                           "broadcast",  "all_to_all",     "all"};
constexpr size_t kAll = 5;

struct CommOptions {
  std::string action;
  int ranks = 0;
  comm::RankKind kind = comm::RankKind::automatic;
  std::string device = "cpu";
  bool oversubscribe_devices = false;
  size_t op = 0;
  base::ByteSize min{1 << 10}, max{64 << 20};
  base::Duration time{100 * base::kNsPerMs};
  base::Duration deadline;
  bool json = false;

  void fields(base::OptionList& f) {
    f.add("action", &action, "bench").positional().required();
    f.add("ranks", &ranks, "ranks; 0: one for each processor, or all of the job").at_least(0).at_most(256);
    f.add_choice(
        "kind", &kind, {"automatic", "local", "mpi"},
        "ranks as threads of this process or as processes of the job; automatic: mpi under a launcher");
    f.add("device", &device, "where the buffers are: cpu, cuda or emulated, one for each rank of a machine");
    f.add("oversubscribe_devices", &oversubscribe_devices,
          "let ranks share devices where they outnumber them");
    f.add("op", base::ChoiceTarget{kOperations, [this] { return op; }, [this](size_t i) { op = i; }},
          "which collective");
    f.add("min", &min, "smallest size, 1 byte at least");
    f.add("max", &max, "largest size, 1 TiB at most; sizes grow fourfold");
    f.add("time", &time, "how long to measure each size");
    f.add("deadline", &deadline, "give up when a rank waits so long for another; 0: never").at_least(0);
    f.add("json", &json, "print one JSON object");
  }
};

struct Measured {
  std::string op;
  std::vector<comm::BenchPoint> points;
};

struct BenchRun {
  std::string kind;
  std::string link;  ///< of devices
  int ranks = 0;
  std::vector<Measured> measured;
};

void print_text(const BenchRun& run) {
  if (!run.link.empty()) std::printf("device memory, link %s\n", run.link.c_str());
  for (const Measured& m : run.measured) {
    std::printf("%s of f32, %d %s ranks; GB = 1e9 bytes\n", m.op.c_str(), run.ranks, run.kind.c_str());
    std::printf("%12s %12s %10s %10s %12s %8s\n", "bytes", "us", "alg GB/s", "bus GB/s", "memcpy GB/s",
                "of copy");
    for (const comm::BenchPoint& p : m.points) {
      std::printf("%12lld %12.2f %10.2f %10.2f %12.2f %6.0f %%\n", static_cast<long long>(p.bytes),
                  p.seconds * 1e6, p.algorithm_gb_s, p.bus_gb_s, p.copy_gb_s,
                  100 * p.algorithm_gb_s / p.copy_gb_s);
    }
    if (m.points.size() >= 2) {
      const comm::BenchFit f = comm::fit(m.points);
      std::printf("fit: %.2f us + bytes / %.2f GB/s\n", f.latency_s * 1e6, f.bytes_per_s * 1e-9);
    }
    std::printf("\n");
  }
}

Json to_json(const Measured& m) {
  Json list = Json::array();
  for (const comm::BenchPoint& p : m.points) {
    list.push_back(Json::object({{"bytes", p.bytes},
                                 {"seconds", p.seconds},
                                 {"algorithm_gb_s", p.algorithm_gb_s},
                                 {"bus_gb_s", p.bus_gb_s},
                                 {"memcpy_gb_s", p.copy_gb_s}}));
  }
  Json all = Json::object({{"op", m.op}, {"dtype", "f32"}, {"sizes", std::move(list)}});
  if (m.points.size() >= 2) {
    const comm::BenchFit f = comm::fit(m.points);
    all.set("fit", Json::object({{"latency_us", f.latency_s * 1e6}, {"gb_s", f.bytes_per_s * 1e-9}}));
  }
  return all;
}

void print_json(const BenchRun& run) {
  Json operations = Json::array();
  for (const Measured& m : run.measured) operations.push_back(to_json(m));
  std::cout << Json::object({{"communicator", run.kind},
                             {"device_link", run.link},
                             {"ranks", run.ranks},
                             {"machine", base::read_cpu_info().to_json()},
                             {"operations", std::move(operations)}})
                   .dump({.indent = 2})
            << "\n";
}

std::vector<Measured> measure(const CommOptions& options, comm::Communicator& ranks,
                              const comm::BenchDevice* on) {
  std::vector<Measured> out;
  const size_t first = options.op == kAll ? 0 : options.op;
  const size_t last = options.op == kAll ? kAll - 1 : options.op;
  for (size_t op = first; op <= last; ++op) {
    const comm::BenchSpec spec{.what = static_cast<comm::Collective>(op),
                               .min_bytes = options.min.bytes,
                               .max_bytes = options.max.bytes,
                               .min_ns = options.time.ns};
    out.push_back({kOperations[op], comm::run_bench(ranks, spec, on)});
  }
  return out;
}

/// Measures on device memory, with one device for each rank. Returns the link that the ranks chose.
std::string measure_devices(const CommOptions& options, comm::Communicator& ranks,
                            std::vector<Measured>& measured) {
  const std::string name =
      options.oversubscribe_devices ? runtime::shared_device(options.device) : options.device;
  const auto device = runtime::open_device(runtime::device_of_rank(name, ranks));
  auto& gpu = dynamic_cast<cuda::CudaDevice&>(*device);
  base::ThreadPool pool(1);
  const auto stream = gpu.open_stream(pool, cuda::StreamRole::communication);
  const runtime::DeviceLinkChoice choice = runtime::choose_link(ranks, gpu);
  const auto group = runtime::open_device_group(choice.link, ranks, gpu, *stream);
  const comm::BenchDevice on{*device, *stream, *group};
  measured = measure(options, ranks, &on);
  return base::concat(comm::to_string(choice.link), " (", choice.why, ")");
}

}  // namespace

int comm_main(std::span<const std::string> words, base::Env& env) {
  CommOptions options;
  if (!parse(options, words, "comm")) return 0;
  base::require(options.action == "bench", "unknown action of trireme comm: '", options.action,
                "'; the nearest is 'bench'");
  base::require(options.min.bytes >= 1, "--min is at least 1 byte");
  base::require(options.max.bytes <= comm::kMostBenchBytes, "--max is at most 1 TiB");
  base::require(options.min.bytes <= options.max.bytes, "--min is above --max");
  base::require(options.time.ns >= 0, "--time is not negative");
  comm::RankOptions how{.kind = options.kind, .ranks = options.ranks, .deadline_ns = options.deadline.ns};
  how.on_stuck = [&](const std::string& report) { env.log.error("comm", "stuck", {{"report", report}}); };
  const bool local = comm::chosen_kind(how) == comm::RankKind::local;
  if (local && how.ranks == 0) how.ranks = base::read_cpu_info().threads();
  comm::run_ranks(how, [&](comm::Communicator& c) {
    std::vector<Measured> measured;
    std::string link;
    if (runtime::kind_of_device(options.device) == tensor::DeviceKind::cpu) {
      measured = measure(options, c, nullptr);
    } else {
      link = measure_devices(options, c, measured);
    }
    if (c.rank() != 0) return;
    const BenchRun run{local ? "local" : "mpi", link, c.size(), std::move(measured)};
    options.json ? print_json(run) : print_text(run);
  });
  return 0;
}

std::string comm_markdown() { return options_markdown<CommOptions>(); }

}  // namespace trireme::cli
