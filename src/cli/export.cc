// trireme export: writes a model as an ONNX file, for peers, viewers and other runtimes.
#include <iostream>

#include "cli/model_input.h"
#include "cli/verb.h"
#include "model/onnx/export.h"

namespace trireme::cli {
namespace {

struct ExportCommand {
  std::string model, file;
  int64_t opset = model::onnx::ExportOptions{}.opset;

  void fields(base::OptionList& f) {
    f.add("model", &model, "ONNX file, directory of a model, or zoo:resnet50").positional().required();
    f.add("file", &file, "the ONNX file to write").positional().required();
    f.add("opset", &opset, "version of the default operator set; raised where an operator is younger")
        .at_least(1);
  }
};

}  // namespace

int export_main(std::span<const std::string> words, base::Env&) {
  ExportCommand command;
  if (!parse(command, words, "export")) return 0;
  const model::Model model = open_model(command.model);
  model::onnx::ExportOptions options;
  options.opset = command.opset;
  model::onnx::save_onnx(model.graph, command.file, options);
  return 0;
}

std::string export_markdown() { return options_markdown<ExportCommand>(); }

}  // namespace trireme::cli
