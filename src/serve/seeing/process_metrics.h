// Gauges and counters of this process and its machine, under the names that dashboards know.
#pragma once

#include "base/clock.h"
#include "serve/seeing/metrics.h"

namespace trireme::serve {

/// Registers Prometheus' process_*, Triton's nv_cpu_* and nv_pinned_*, and the time since now. All are read
/// from the kernel when scraped; `clock` outlives the registry.
void register_process_metrics(MetricRegistry& metrics, const base::Clock& clock);

}  // namespace trireme::serve
