// trireme comm bench: bandwidth of the collectives by size, with the fitted latency and bandwidth.
#include <cstdio>
#include <iostream>

#include "base/cpu_info.h"
#include "base/error.h"
#include "cli/verb.h"
#include "comm/bench.h"
#include "comm/local.h"

namespace trireme::cli {
namespace {

using base::Json;

// In the order of comm::Collective.
const std::vector<std::string> kOperations{"all_reduce", "reduce_scatter", "all_gather", "broadcast",
                                           "all_to_all"};

struct CommOptions {
  std::string action;
  int ranks = 0;
  comm::Collective op = comm::Collective::all_reduce;
  base::ByteSize min{1 << 10}, max{64 << 20};
  base::Duration time{100 * base::kNsPerMs};
  bool json = false;

  void fields(base::OptionList& f) {
    f.add("action", &action, "bench").positional().required();
    f.add("ranks", &ranks, "ranks, as threads of this process; 0: one for each processor")
        .at_least(0)
        .at_most(256);
    f.add_choice("op", &op, kOperations, "which collective");
    f.add("min", &min, "smallest size").at_least(1);
    f.add("max", &max, "largest size; sizes grow fourfold").at_least(1);
    f.add("time", &time, "how long to measure each size");
    f.add("json", &json, "print one JSON object");
  }
};

void print_text(const CommOptions& options, std::span<const comm::BenchPoint> points) {
  std::printf("%s of f32, %d local ranks; GB = 1e9 bytes\n",
              kOperations[static_cast<size_t>(options.op)].c_str(), options.ranks);
  std::printf("%12s %12s %10s %10s %12s %8s\n", "bytes", "us", "alg GB/s", "bus GB/s", "memcpy GB/s",
              "of copy");
  for (const comm::BenchPoint& p : points) {
    std::printf("%12lld %12.2f %10.2f %10.2f %12.2f %6.0f %%\n", static_cast<long long>(p.bytes),
                p.seconds * 1e6, p.algorithm_gb_s, p.bus_gb_s, p.copy_gb_s,
                100 * p.algorithm_gb_s / p.copy_gb_s);
  }
  if (points.size() < 2) return;
  const comm::BenchFit f = comm::fit(points);
  std::printf("\nfit: %.2f us + bytes / %.2f GB/s\n", f.latency_s * 1e6, f.bytes_per_s * 1e-9);
}

void print_json(const CommOptions& options, std::span<const comm::BenchPoint> points) {
  Json list = Json::array();
  for (const comm::BenchPoint& p : points) {
    list.push_back(Json::object({{"bytes", p.bytes},
                                 {"seconds", p.seconds},
                                 {"algorithm_gb_s", p.algorithm_gb_s},
                                 {"bus_gb_s", p.bus_gb_s},
                                 {"memcpy_gb_s", p.copy_gb_s}}));
  }
  Json all = Json::object({{"op", kOperations[static_cast<size_t>(options.op)]},
                           {"communicator", "local"},
                           {"ranks", options.ranks},
                           {"dtype", "f32"},
                           {"machine", base::read_cpu_info().to_json()},
                           {"sizes", std::move(list)}});
  if (points.size() >= 2) {
    const comm::BenchFit f = comm::fit(points);
    all.set("fit", Json::object({{"latency_us", f.latency_s * 1e6}, {"gb_s", f.bytes_per_s * 1e-9}}));
  }
  std::cout << all.dump({.indent = 2}) << "\n";
}

}  // namespace

int comm_main(std::span<const std::string> words, base::Env&) {
  CommOptions options;
  if (!parse(options, words, "comm")) return 0;
  base::require(options.action == "bench", "unknown action of trireme comm: '", options.action,
                "'; the nearest is 'bench'");
  base::require(options.min.bytes <= options.max.bytes, "min is above max");
  if (options.ranks == 0) options.ranks = base::read_cpu_info().threads();
  const comm::BenchSpec spec{.what = options.op,
                             .min_bytes = options.min.bytes,
                             .max_bytes = options.max.bytes,
                             .min_ns = options.time.ns};
  std::vector<comm::BenchPoint> points;
  comm::LocalWorld world(options.ranks);
  world.run([&](comm::Communicator& c) {
    std::vector<comm::BenchPoint> own = comm::run_bench(c, spec);
    if (c.rank() == 0) points = std::move(own);
  });
  options.json ? print_json(options, points) : print_text(options, points);
  return 0;
}

std::string comm_markdown() { return options_markdown<CommOptions>(); }

}  // namespace trireme::cli
