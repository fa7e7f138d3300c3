// ONNX files as models: resolves names, inlines functions, makes captures of subgraphs explicit, and upgrades
// old forms of operators.
#include "model/onnx/import.h"

#include <filesystem>

#include "base/files/file.h"
#include "model/onnx/importer.h"

namespace trireme::model::onnx {
namespace {

std::string producer_text(const ModelProto& proto) {
  std::string text(proto.producer_name);
  if (!proto.producer_version.empty()) text += " " + std::string(proto.producer_version);
  return text;
}

}  // namespace

Model import_onnx(std::string_view bytes, std::shared_ptr<const void> owner, const std::string& directory,
                  const LoadOptions& options) {
  const ModelProto proto = parse_model(bytes);
  Importer importer(proto, TensorSource{.owner = std::move(owner), .directory = directory},
                    options.takes_strings);
  Model model;
  model.format = "onnx";
  model.graph = importer.run();
  model.name = model.graph.name;
  model.opset = importer.default_opset();
  model.string_inputs = importer.string_inputs();
  model.string_outputs = importer.string_outputs();
  model.producer = producer_text(proto);
  for (const auto& [name, file] : importer.external_files()) model.files.push_back(file);
  for (const StringPair& pair : proto.metadata) model.metadata.emplace_back(pair.key, pair.value);
  return model;
}

Model load_onnx(const std::string& path, const LoadOptions& options) {
  const auto file = base::MappedFile::open(path);
  std::string directory = std::filesystem::path(path).parent_path().string();
  if (directory.empty()) directory = ".";
  try {
    Model model = import_onnx(file->text(), file, directory, options);
    model.directory = directory;
    model.files.push_back(file);
    return model;
  } catch (const base::Error& e) {
    throw e.with(base::concat("model '", path, "'"));
  }
}

}  // namespace trireme::model::onnx
