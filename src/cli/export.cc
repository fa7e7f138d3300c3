// trireme export: writes a model for other programs, as an ONNX file or a Hugging Face directory.
#include <filesystem>

#include "cli/model_input.h"
#include "cli/verb.h"
#include "model/hf/directory.h"
#include "model/onnx/export.h"
#include "model/onnx/import.h"
#include "passes/precision/stored_products.h"
#include "train/task.h"

namespace trireme::cli {
namespace {

enum class Form { by_name, onnx, huggingface };

struct ExportCommand {
  std::string model, target;
  Form form = Form::by_name;
  int64_t opset = model::onnx::ExportOptions{}.opset;
  bool average = false;
  std::string companions;

  void fields(base::OptionList& f) {
    f.add("model", &model,
          "ONNX file, directory of a model, run or checkpoint of `trireme train`, or zoo:NAME")
        .positional()
        .required();
    f.add("target", &target, "the ONNX file or the Hugging Face directory to write").positional().required();
    f.add_choice("form", &form, {"by_name", "onnx", "huggingface"},
                 "what to write; by_name: ONNX if the target ends in .onnx, else a Hugging Face directory");
    f.add("opset", &opset,
          "ONNX: version of the default operator set; raised where an operator, or a form of it, is younger")
        .at_least(model::onnx::kOldestExportOpset)
        .at_most(model::onnx::kNewestOpset);
    f.add("average", &average, "of a run or checkpoint: the averaged weights");
    f.add("companions", &companions, "Hugging Face: directory whose tokenizer files are copied");
  }
};

/// Opens a run or checkpoint of the trainer, or any model that the other verbs accept.
model::Model open_source(const ExportCommand& command) {
  if (train::has_checkpoint(command.model))
    return train::model_of_checkpoint(command.model, {.average = command.average, .places = {"."}});
  base::require(!command.average, "--average is for runs and checkpoints, '", command.model, "' is none");
  model::Model model = open_model(command.model);
  passes::widen_stored_floats(model.graph, true);
  return model;
}

/// ONNX has no operator for weights in the blocks of GGUF.
void refuse_blocks(const model::Model& model) {
  for (const ir::Node& node : model.graph.nodes()) {
    if (node.op != nullptr && node.op_name() == "dequantize_blocks")
      base::fail_unsupported("ONNX has no form of weights in blocks, as '",
                             model.graph.value(node.in[0]).name,
                             "' is; `trireme quantize --to f32` writes them as numbers, to be exported then");
  }
}

}  // namespace

int export_main(std::span<const std::string> words, base::Env&) {
  ExportCommand command;
  if (!parse(command, words, "export")) return 0;
  const model::Model model = open_source(command);
  const bool is_onnx =
      command.form == Form::onnx || (command.form == Form::by_name && command.target.ends_with(".onnx"));
  if (is_onnx) {
    model::onnx::ExportOptions options;
    options.opset = command.opset;
    refuse_blocks(model);
    model::onnx::save_onnx(model.graph, command.target, options);
  } else {
    if (model.format == "gguf")
      base::fail_unsupported("a GGUF file is not written as a directory; export it as ONNX, '",
                             command.target, ".onnx', or take the directory that it was made from");
    if (!command.companions.empty() && !std::filesystem::is_directory(command.companions))
      base::fail(base::ErrorCode::not_found, "--companions: no directory '", command.companions, "'");
    model::hf::save_directory(model, command.target, {.companions = command.companions});
  }
  return 0;
}

std::string export_markdown() { return options_markdown<ExportCommand>(); }

}  // namespace trireme::cli
