// ONNX files as models: names resolved, functions inlined, subgraph captures explicit, old operator forms
// upgraded.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "model/model.h"

namespace trireme::model::onnx {

/// The newest default-domain opset that the importer knows, and the oldest it promises.
inline constexpr int64_t kNewestOpset = 28;
inline constexpr int64_t kOldestOpset = 7;

/// Makes a model from the bytes of an ONNX file. Weights look into `bytes`, which `owner` keeps alive;
/// `directory` is the root of external data (empty: none). Floating-point initializers of rank >= 1 become
/// params, others constants. Throws unsupported for operators, types and opsets that are not supported,
/// invalid_argument for broken files.
Model import_onnx(std::string_view bytes, std::shared_ptr<const void> owner, const std::string& directory,
                  const LoadOptions& options = {});

/// Maps the file and imports it.
Model load_onnx(const std::string& path, const LoadOptions& options = {});

}  // namespace trireme::model::onnx
