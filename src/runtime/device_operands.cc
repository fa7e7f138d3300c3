// The addresses of operands and results of a program's steps on a device.
#include "runtime/device_operands.h"

#include <algorithm>

#include "base/memory/shared_cache.h"
#include "tensor/repeated.h"

namespace trireme::runtime {

using compile::SlotId;
using compile::SlotKind;

namespace {

/// The number of bytes after which a constant repeats; all its bytes for most constants.
int64_t period_of(const tensor::Tensor& content) {
  const tensor::Tensor block = tensor::repetition_of(content).block;
  return block.defined() ? std::min(block.bytes(), content.bytes()) : content.bytes();
}

}  // namespace

DeviceOperands::DeviceOperands(const compile::Program& program, std::vector<void*> states,
                               const DeviceBinding& on, const DeviceTransfers& transfers)
    : program_(program),
      transfers_(transfers),
      states_(std::move(states)),
      constants_(program.slots.size()),
      binding_(program.slots.size(), 0) {
  for (const auto* ids : {&program.inputs, &program.outputs, &program.states}) {
    for (size_t i = 0; i < ids->size(); ++i) binding_[compile::index((*ids)[i])] = i;
  }
  for (const compile::Step& step : program.steps) {
    first_in_.push_back(addresses_.size());
    addresses_.resize(addresses_.size() + step.in.size());
    first_out_.push_back(addresses_.size());
    addresses_.resize(addresses_.size() + step.out.size());
  }
  upload_constants(on);
}

void DeviceOperands::upload_constants(const DeviceBinding& on) {
  const std::unique_ptr<tensor::Stream> stream = on.device->open_stream(*on.pool);
  const std::string format = base::concat("on device ", on.device->ordinal());
  const auto upload = [&](const tensor::Tensor& content) {
    return on.packs->get<void>(ir::pack_key(content, format), [&]() -> std::shared_ptr<const void> {
      std::shared_ptr<void> memory = on.device->allocate(content.bytes());
      auto* to = static_cast<std::byte*>(memory.get());
      const int64_t period = period_of(content);
      const StagedPart once{const_cast<std::byte*>(content.raw()), 0, period};
      on.staging->reserve(period, 0);
      on.staging->upload(to, {&once, 1}, period, *stream);
      for (int64_t done = period; done < content.bytes(); done *= 2)
        stream->copy(to + done, to, std::min(done, content.bytes() - done));
      stream->synchronize();
      return memory;
    });
  };
  for (const compile::Step& step : program_.steps) {
    for (size_t i = 0; i < step.in.size() && !step.on_host; ++i) {
      if (step.in[i] == compile::kNoSlot) continue;
      const compile::Slot& root = program_.root(step.in[i]);
      std::shared_ptr<const void>& copy = constants_[compile::index(root.root)];
      const bool is_unread = i < 32 && (step.bound.unread_inputs >> i & 1u);
      if (root.kind == SlotKind::constant && copy == nullptr && !is_unread) copy = upload(root.constant);
    }
  }
}

void DeviceOperands::resolve(SlotId id, size_t place, std::byte* arena) {
  if (id == compile::kNoSlot) return;
  const compile::Slot& root = program_.root(id);
  const size_t slot = compile::index(root.root);
  const size_t bound = binding_[slot];
  switch (root.kind) {
    case SlotKind::arena: addresses_[place] = arena + root.offset; break;
    case SlotKind::constant: addresses_[place] = const_cast<void*>(constants_[slot].get()); break;
    case SlotKind::state: addresses_[place] = states_[bound]; break;
    case SlotKind::input: addresses_[place] = transfers_.input(bound); break;
    case SlotKind::output: addresses_[place] = transfers_.output(bound); break;
  }
}

void DeviceOperands::bind_arena(std::byte* arena) {
  for (size_t s = 0; s < program_.steps.size(); ++s) {
    const compile::Step& step = program_.steps[s];
    for (size_t i = 0; i < step.in.size(); ++i) resolve(step.in[i], first_in_[s] + i, arena);
    for (size_t i = 0; i < step.out.size(); ++i) resolve(step.out[i], first_out_[s] + i, arena);
  }
}

}  // namespace trireme::runtime
