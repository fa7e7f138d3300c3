// Graphs as ONNX files: for peers, viewers and round-trip tests.
#pragma once

#include <cstdint>
#include <string>

#include "ir/graph.h"

namespace trireme::model::onnx {

/// The oldest opset that has every operator in the form in which it is written, but for those that are
/// younger.
inline constexpr int64_t kOldestExportOpset = 21;

struct ExportOptions {
  /// From kOldestExportOpset to kNewestOpset; raised where an operator, or a form of it, is younger.
  int64_t opset = kOldestExportOpset;
  std::string producer = "trireme";
};

/// The bytes of an ONNX model: params and constants as initializers, ops without an ONNX operator expanded
/// into simpler ones. Throws unsupported for a graph that has state, an op that neither maps nor expands, or
/// more than 2 GiB; invalid_argument for another opset.
std::string export_onnx(const ir::Graph& graph, const ExportOptions& options = {});

/// Writes export_onnx to a file that appears whole or not at all.
void save_onnx(const ir::Graph& graph, const std::string& path, const ExportOptions& options = {});

}  // namespace trireme::model::onnx
