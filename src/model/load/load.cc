// Chooses the reader of a model by the content of its path.
#include "model/load/load.h"

#include <filesystem>

#include "model/gguf/gguf_model.h"
#include "model/hf/checkpoint.h"
#include "model/hf/directory.h"
#include "model/onnx/import.h"
#include "tensor/absent.h"

namespace trireme::model {

namespace fs = std::filesystem;

namespace {

Model read_model(const std::string& path, const LoadOptions& options) {
  std::error_code none;  // an unreadable path counts as absent
  const fs::path at(path);
  if (!fs::exists(at, none)) base::fail(base::ErrorCode::not_found, "no model at '", path, "'");
  if (!fs::is_directory(at, none)) {
    if (at.extension() == ".onnx") return onnx::load_onnx(path, options);
    if (at.extension() == ".gguf") return gguf::load_gguf(path);
    base::fail_unsupported("unknown model format '", at.extension().string(), "' of '", path,
                           "', want *.onnx, *.gguf or a directory");
  }
  if (fs::exists(at / "model.onnx", none)) return onnx::load_onnx((at / "model.onnx").string(), options);
  if (fs::exists(at / "config.json", none) && (hf::has_checkpoint(path) || options.is_without_content))
    return hf::load_directory(path, options);
  base::fail(base::ErrorCode::not_found, "directory '", path,
             "' holds neither model.onnx nor config.json with model.safetensors");
}

}  // namespace

Model load_model(const std::string& path, const LoadOptions& options) {
  Model model = read_model(path, options);
  if (options.is_without_content) drop_content(model.graph);
  return model;
}

void drop_content(ir::Graph& graph) {
  for (size_t i = 0; i < graph.values().size(); ++i) {
    ir::Value& v = graph.value(ir::ValueId(static_cast<uint32_t>(i)));
    if (v.data.defined()) v.data = tensor::without_content(v.data);
  }
}

}  // namespace trireme::model
