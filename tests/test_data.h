// Where tests find data that is not in the repository: shared data sets, the demo's encoder, golden texts.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace trireme::tests {

/// The checkout this test was built from, for golden texts under tests/.
std::filesystem::path source_dir();

/// Finds `relative` in the shared data: $TRIREME_SHARED_DATA, else shared/data beside the checkout or above
/// it. Nothing when the data is absent; then the test skips with a reason:
///   const auto model = tests::shared_data("onnx-models/mnist.onnx");
///   if (!model) GTEST_SKIP() << tests::kNoSharedData;
std::optional<std::filesystem::path> shared_data(const std::string& relative);
inline constexpr const char* kNoSharedData =
    "no shared data: set TRIREME_SHARED_DATA or put shared/data beside the checkout";

/// Finds the MiniLM encoder's directory (config.json, model.safetensors, vocab.txt): $TRIREME_ENCODER, else
/// the wheel that `./dev setup` unpacks into .venv.
std::optional<std::filesystem::path> encoder_dir();
inline constexpr const char* kNoEncoder = "no encoder: run ./dev setup or set TRIREME_ENCODER";

}  // namespace trireme::tests
