// What streams of both kinds of CUDA devices have in common.
#include <charconv>
#include <cstdlib>

#include "backend/cuda/device/cuda_device.h"
#include "base/error.h"

namespace trireme::cuda {

std::string_view to_string(StreamRole role) {
  switch (role) {
    case StreamRole::compute: return "compute";
    case StreamRole::communication: return "communication";
    case StreamRole::copy: return "copy";
  }
  return "compute";
}

EmulatedPlan parse_emulated_plan(std::string_view text) {
  constexpr std::string_view kShuffled = "shuffled:";
  if (text.empty() || text == "direct") return {};
  if (text == "late") return {EmulatedOrder::late};
  if (text == "early") return {EmulatedOrder::early};
  if (text.starts_with(kShuffled)) {
    const std::string_view digits = text.substr(kShuffled.size());
    uint64_t seed = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), seed);
    if (error == std::errc() && end == digits.data() + digits.size()) return {EmulatedOrder::shuffled, seed};
  }
  base::fail_invalid("TRIREME_EMULATED_ORDER is direct, late, early or shuffled:SEED, not '", text, "'");
}

EmulatedPlan emulated_plan() {
  const char* text = std::getenv("TRIREME_EMULATED_ORDER");
  return parse_emulated_plan(text == nullptr ? "" : text);
}

void CudaStream::call(std::function<void()>) {
  base::fail_unsupported("a GPU's stream runs no host code that may wait");
}

}  // namespace trireme::cuda
