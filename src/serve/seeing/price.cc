// Prices of computing time.
#include "serve/seeing/price.h"

#include "base/error.h"
#include "base/files/file.h"
#include "base/text/yaml.h"

namespace trireme::serve {

Prices Prices::read(double per_hour, const std::string& file, int cores) {
  base::require(per_hour >= 0, "--price-per-hour must not be negative");
  double machine = per_hour, core = 0, gpu = 0;
  if (!file.empty()) {
    const base::YamlDocument document = base::parse_yaml(base::read_file(file, size_t{1} << 20));
    base::require(document.value.is_object(), "prices of '", file, "' are not keys with numbers");
    for (const base::JsonMember& m : document.value.as_object()) {
      double* price = m.key == "machine" ? &machine
                      : m.key == "core"  ? &core
                      : m.key == "gpu"   ? &gpu
                                         : nullptr;
      base::require(price != nullptr, "line ", document.line(m.key), " of '", file, "': no price of '", m.key,
                    "': machine, core or gpu");
      base::require(m.value.is_number() && m.value.as_double() >= 0, "line ", document.line(m.key), " of '",
                    file, "': a price is a number of at least 0");
      *price = m.value.as_double();
    }
  }
  return {.core_per_hour = core > 0 ? core : machine / cores, .gpu_per_hour = gpu > 0 ? gpu : machine};
}

double Prices::per_busy_second(const std::string& device, int threads) const {
  return (device == "cpu" ? core_per_hour * threads : gpu_per_hour) / 3600;
}

}  // namespace trireme::serve
