// Runs steps of a device's program that have no kernel there on the host.
#include "runtime/device_host_steps.h"

#include <algorithm>

namespace trireme::runtime {

using compile::SlotId;
using compile::SlotKind;

DeviceHostSteps::DeviceHostSteps(const compile::Program& program, const DeviceOperands& operands,
                                 const DeviceBinding& on)
    : program_(program),
      operands_(operands),
      staging_(*on.staging),
      stream_(*on.pool),
      steps_(program.steps.size()) {
  size_t most = 0;
  for (size_t s = 0; s < program.steps.size(); ++s) {
    const compile::Step& step = program.steps[s];
    if (!step.on_host) continue;
    steps_[s] = plan(s);
    most = std::max(most, step.in.size() + step.out.size());
  }
  args_.resize(most);
}

DeviceHostSteps::HostStep DeviceHostSteps::plan(size_t s) const {
  const compile::Step& step = program_.steps[s];
  HostStep host;
  int64_t end = 0;
  std::vector<SlotId> roots;
  const auto place = [&](SlotId id, size_t where, bool is_result) {
    host.fixed.push_back(nullptr);
    host.from.push_back(-1);
    if (id == compile::kNoSlot) return;
    const compile::Slot& root = program_.root(id);
    if (root.kind == SlotKind::constant) {
      host.fixed.back() = const_cast<std::byte*>(root.constant.raw());
      return;
    }
    const auto known = std::find(roots.begin(), roots.end(), root.root);
    host.from.back() = static_cast<int>(known - roots.begin());
    if (known == roots.end()) {
      roots.push_back(root.root);
      host.moved.push_back({.place = where, .at = end, .bytes = program_.slot(id).bytes});
      end += aligned_for_device(program_.slot(id).bytes);
    }
    Moved& moved = host.moved[static_cast<size_t>(host.from.back())];
    (is_result ? moved.is_written : moved.is_read) = true;
  };
  for (size_t i = 0; i < step.in.size(); ++i) {
    const bool is_unread = i < 32 && (step.bound.unread_inputs >> i & 1u);
    place(is_unread ? compile::kNoSlot : step.in[i], operands_.first_in(s) + i, false);
  }
  for (size_t i = 0; i < step.out.size(); ++i) place(step.out[i], operands_.first_out(s) + i, true);
  host.workspace_at = end;
  staging_.reserve(0, end + step.bound.workspace_bytes);
  return host;
}

void DeviceHostSteps::run(size_t s, tensor::Stream& stream, ir::RunStatus& status) {
  const compile::Step& step = program_.steps[s];
  const HostStep& host = steps_[s];
  std::byte* memory = staging_.host();
  for (const Moved& m : host.moved) {
    if (m.is_read) stream.download(memory + m.at, *operands_.at(m.place), m.bytes);
  }
  stream.synchronize();
  for (size_t i = 0; i < host.from.size(); ++i) {
    args_[i] = host.from[i] < 0 ? host.fixed[i] : memory + host.moved[static_cast<size_t>(host.from[i])].at;
  }
  step.bound.run({.in = args_.data(),
                  .out = args_.data() + step.in.size(),
                  .workspace = memory + host.workspace_at,
                  .stream = stream_,
                  .status = &status});
  for (const Moved& m : host.moved) {
    if (m.is_written) stream.upload(*operands_.at(m.place), memory + m.at, m.bytes);
  }
}

}  // namespace trireme::runtime
