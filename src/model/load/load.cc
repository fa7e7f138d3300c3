// Chooses the reader of a model by what lies at its path.
#include "model/load/load.h"

#include <filesystem>

#include "model/gguf/gguf_model.h"
#include "model/hf/checkpoint.h"
#include "model/hf/directory.h"
#include "model/onnx/import.h"

namespace trireme::model {

namespace fs = std::filesystem;

Model load_model(const std::string& path, const LoadOptions& options) {
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
  if (fs::exists(at / "config.json", none) && hf::has_checkpoint(path))
    return hf::load_directory(path, options);
  base::fail(base::ErrorCode::not_found, "directory '", path,
             "' holds neither model.onnx nor config.json with model.safetensors");
}

}  // namespace trireme::model
