// trireme devices: what programs can run on in this machine, why on nothing else, and how fast it is.
#include <iomanip>
#include <iostream>

#include "backend/cuda/device/topology.h"
#include "base/report/rate.h"
#include "base/report/svg_plot.h"
#include "base/machine/cpu_info.h"
#include "cli/verb.h"
#include "runtime/device_speed.h"
#include "runtime/open_device.h"

namespace trireme::cli {
namespace {

struct DevicesOptions {
  bool json = false;
  bool topology = false;
  std::string measure;
  int threads = 0;
  runtime::SpeedOptions speed;
  void fields(base::OptionList& f) {
    f.add("json", &json, "print one JSON array; with measure one line for each result");
    f.add("topology", &topology,
          "how GPUs are wired: NVLink or PCIe, NUMA nodes, as the driver and sysfs tell");
    f.add("measure", &measure, "a device to measure: its copy and products, then operators against these");
    f.add("threads", &threads, "of the CPU; 0: all cores this process may use").at_least(0);
    f.add("scale", &speed.scale, "of the measured sizes; 1 fills a data-center GPU")
        .at_least(1e-4)
        .at_most(4);
    f.add("seconds", &speed.seconds, "for each measurement, about").at_least(0.001);
    f.add("only", &speed.only, "measure operators whose name contains it");
  }
};

void list(bool json) {
  base::Json all = base::Json::array();
  for (const runtime::DeviceLine& line : runtime::list_devices()) {
    if (json) {
      all.push_back(
          base::Json::object({{"name", line.name}, {"text", line.text}, {"is_there", line.is_there}}));
    } else {
      std::cout << line.name << (line.is_there ? ": " : ": none: ") << line.text << "\n";
    }
  }
  if (json) std::cout << all.dump({.indent = 2}) << "\n";
}

void print_topology(bool json) {
  base::Json all = base::Json::array();
  for (const cuda::TopologyLine& line : cuda::describe_topology()) {
    if (!json) std::cout << line.name << ": " << line.text << "\n";
    all.push_back(base::Json::object({{"name", line.name}, {"text", line.text}}));
  }
  if (json) std::cout << all.dump({.indent = 2}) << "\n";
}

void print(const runtime::Ceilings& ceilings, const DevicesOptions& options) {
  if (options.json) {
    base::Json line =
        base::Json::object({{"device", options.measure}, {"copy_gbytes_s", ceilings.copy_gbytes_s}});
    for (const auto& [type, rate] : ceilings.product_tflop_s)
      line.set(base::concat("product_", tensor::name_of(type), "_tflop_s"), rate);
    std::cout << line.dump() << std::endl;
    return;
  }
  std::cout << "copy        " << std::setw(10) << ceilings.copy_gbytes_s << " GB/s (read and written)\n";
  for (const auto& [type, rate] : ceilings.product_tflop_s)
    std::cout << "product " << std::setw(4) << tensor::name_of(type) << std::setw(10) << rate << " TFLOP/s\n";
}

void print(const runtime::OpSpeed& s, const DevicesOptions& options) {
  // Above the ceiling there is no share: operands came from a cache, or less was computed than counted.
  const bool is_possible = s.percent <= 100 * base::kCeilingNoise;
  if (options.json) {
    std::cout << base::Json::object({{"device", options.measure},
                                     {"op", s.op},
                                     {"kernel", s.kernel},
                                     {"shape", s.shape},
                                     {"seconds", s.seconds},
                                     {"gbytes_s", s.gbytes_s},
                                     {"tflop_s", s.tflop_s},
                                     {"percent", is_possible ? base::Json(s.percent) : base::Json()},
                                     {"refused", s.refused}})
                     .dump()
              << std::endl;
    return;
  }
  std::cout << std::left << std::setw(18) << s.op << std::right;
  if (!s.refused.empty()) {
    std::cout << " refused: " << s.refused << "\n";
    return;
  }
  std::cout << std::setw(11) << s.seconds * 1e6 << " us" << std::setw(10) << s.gbytes_s << " GB/s"
            << std::setw(10) << s.tflop_s << " TFLOP/s" << std::setw(6)
            << (is_possible ? base::format_number(s.percent, 0) : "-") << " %  " << s.kernel << "  "
            << s.shape << std::endl;
}

}  // namespace

int devices_main(std::span<const std::string> words, base::Env&) {
  DevicesOptions options;
  if (!parse(options, words, "devices")) return 0;
  if (options.topology) {
    print_topology(options.json);
    return 0;
  }
  if (options.measure.empty()) {
    list(options.json);
    return 0;
  }
  const std::unique_ptr<tensor::Device> device = runtime::open_device(options.measure);
  base::ThreadPool pool(options.threads > 0 ? options.threads : base::read_cpu_info().threads());
  std::cout << std::fixed << std::setprecision(3);
  const runtime::Ceilings ceilings = runtime::measure_ceilings(*device, pool, options.speed);
  print(ceilings, options);
  // Prints each result at once, so that a user who stops early keeps what was measured.
  options.speed.each = [&options](const runtime::OpSpeed& speed) { print(speed, options); };
  runtime::measure_ops(*device, pool, ceilings, options.speed);
  return 0;
}

std::string devices_markdown() { return options_markdown<DevicesOptions>(); }

}  // namespace trireme::cli
