// ONNX files as models: resolves names, inlines functions, makes captures of subgraphs explicit, and upgrades
// old forms of operators.
#include "model/onnx/import.h"

#include <algorithm>
#include <filesystem>
#include <unordered_set>

#include "base/files/file.h"
#include "model/onnx/importer.h"

namespace trireme::model::onnx {
namespace {

std::string producer_text(const ModelProto& proto) {
  std::string text(proto.producer_name);
  if (!proto.producer_version.empty()) text += " " + std::string(proto.producer_version);
  return text;
}

std::vector<FileInput> listed_inputs(const ModelProto& proto) {
  std::unordered_set<std::string_view> initializers;
  for (const TensorProto& t : proto.graph.initializer) initializers.insert(t.name);
  for (const SparseTensorProto& t : proto.graph.sparse_initializer) initializers.insert(t.values.name);
  std::vector<FileInput> inputs;
  for (const ValueInfoProto& info : proto.graph.input) {
    const bool has_default = initializers.contains(info.name);
    if (!has_default || proto.ir_version >= 4) inputs.push_back({std::string(info.name), has_default});
  }
  return inputs;
}

void check_fed(const ModelProto& proto, const std::vector<std::string>& fed) {
  if (fed.empty()) return;
  const std::vector<FileInput> inputs = listed_inputs(proto);
  for (const std::string& name : fed) {
    const auto is_it = [&](const FileInput& input) { return input.has_default && input.name == name; };
    base::require(std::any_of(inputs.begin(), inputs.end(), is_it), "the model has no input '", name,
                  "' with a default");
  }
}

}  // namespace

std::vector<FileInput> file_inputs(const std::string& path) {
  const auto file = base::MappedFile::open(path);
  try {
    return listed_inputs(parse_model(file->text()));
  } catch (const base::Error& e) {
    throw e.with(base::concat("model '", path, "'"));
  }
}

Model import_onnx(std::string_view bytes, std::shared_ptr<const void> owner, const std::string& directory,
                  const LoadOptions& options, const std::vector<std::string>& fed) {
  const ModelProto proto = parse_model(bytes);
  check_fed(proto, fed);
  Importer importer(proto, TensorSource{.owner = std::move(owner), .directory = directory},
                    options.takes_strings, fed);
  Model model;
  model.format = "onnx";
  model.graph = importer.run();
  model.name = model.graph.name;
  model.opset = importer.default_opset();
  model.string_inputs = importer.string_inputs();
  model.string_outputs = importer.string_outputs();
  model.declared_outputs = importer.declared_outputs();
  model.producer = producer_text(proto);
  for (const auto& [name, file] : importer.external_files()) model.files.push_back(file);
  for (const StringPair& pair : proto.metadata) model.metadata.emplace_back(pair.key, pair.value);
  return model;
}

Model load_onnx(const std::string& path, const LoadOptions& options, const std::vector<std::string>& fed) {
  const auto file = base::MappedFile::open(path);
  std::string directory = std::filesystem::path(path).parent_path().string();
  if (directory.empty()) directory = ".";
  try {
    Model model = import_onnx(file->text(), file, directory, options, fed);
    model.directory = directory;
    model.files.push_back(file);
    return model;
  } catch (const base::Error& e) {
    throw e.with(base::concat("model '", path, "'"));
  }
}

}  // namespace trireme::model::onnx
