// What tests of sessions share: steps that stand still until they are let go on.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>

#include "engine/decode/draw_form.h"

namespace trireme::serve {

/// Holds up who comes until it is open.
struct Gate {
  void hold() {
    is_reached = true;
    is_reached.notify_all();
    is_open.wait(false);
  }
  void open() {
    is_open = true;
    is_open.notify_all();
  }
  std::atomic<bool> is_reached{false}, is_open{false};
};

/// Any token may come, once the gate is open: until then the step hangs.
class HangingFilter final : public engine::TokenFilter {
 public:
  explicit HangingFilter(Gate& gate) : gate_(gate) {}
  std::span<const uint64_t> mask() override {
    gate_.hold();
    return {&words_, 1};
  }
  void accept(int64_t) override {}
  std::unique_ptr<engine::TokenFilter> fork() const override {
    return std::make_unique<HangingFilter>(gate_);
  }

 private:
  Gate& gate_;
  const uint64_t words_ = UINT64_MAX;
};

}  // namespace trireme::serve
