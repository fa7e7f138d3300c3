// ONNX files as models: names resolved, functions inlined, subgraph captures explicit, old operator forms
// upgraded.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "model/model.h"

namespace trireme::model::onnx {

/// The newest default-domain opset that the importer knows, and the oldest it promises.
inline constexpr int64_t kNewestOpset = 28;
inline constexpr int64_t kOldestOpset = 7;

/// An input that a file lists. From IR version 4 on, an initializer of its name is a default that a caller
/// may replace. Files list weights so, too, and constants become faster programs: such an input is a constant
/// of the model unless the import is told that it is fed. Older files list all initializers; those are
/// constants.
struct FileInput {
  std::string name;
  bool has_default = false;
};

/// The inputs that a file lists, in its order, without initializers that nobody may replace.
std::vector<FileInput> file_inputs(const std::string& path);

/// Makes a model from the bytes of an ONNX file. Weights look into `bytes`, which `owner` keeps alive;
/// `directory` is the root of external data (empty: none). Floating-point initializers of rank >= 1 become
/// params, others constants; those in `fed`, which must be inputs with defaults, become inputs. Throws
/// unsupported for operators, types and opsets that are not supported, invalid_argument for broken files.
Model import_onnx(std::string_view bytes, std::shared_ptr<const void> owner, const std::string& directory,
                  const LoadOptions& options = {}, const std::vector<std::string>& fed = {});

/// Maps the file and imports it.
Model load_onnx(const std::string& path, const LoadOptions& options = {},
                const std::vector<std::string>& fed = {});

}  // namespace trireme::model::onnx
