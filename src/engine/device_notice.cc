// Reports what a model's programs reused, or failed to reuse, from earlier runs.
#include "engine/device_notice.h"

#include "runtime/open_device.h"

namespace trireme::engine {

std::string take_device_notice(const PreparedModel& model) { return runtime::take_notice(model.packs()); }

}  // namespace trireme::engine
