// trireme quantize: writes a language model in another precision, as a GGUF file or a Hugging Face directory,
// and reports what the quantization costs.
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>

#include "base/files/file.h"
#include "base/machine/cpu_info.h"
#include "cli/model_input.h"
#include "cli/perplexity.h"
#include "cli/verb.h"
#include "model/gguf/quantize.h"
#include "model/hf/quantized_directory.h"
#include "model/load/load.h"

namespace trireme::cli {
namespace {

struct QuantizeCommand {
  std::string model, output, to = "q4_k";
  std::string text, calibrate, tokenizer;
  int64_t context = 512, tokens = 8192, group = 0;
  bool zeros = false;
  int threads = 0;
  bool json = false;

  void fields(base::OptionList& f) {
    f.add("model", &model, "GGUF file, or Hugging Face directory of a decoder").positional().required();
    f.add("output", &output, "the GGUF file, or with int8, int4, fp8 the directory to write; also -o")
        .required();
    f.add("to", &to,
          "of matrices: f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, q2_k, q3_k, q4_k, q5_k, q6_k, iq4_nl, "
          "mxfp4; int8, int4, fp8: a Hugging Face directory in the layout of compressed-tensors");
    f.add("group", &group,
          "of int8 and int4: weights that share a scale, 32, 64 or 128; 0: 128 of int4, rows of int8")
        .at_least(0);
    f.add("zeros", &zeros, "of int8 and int4 by groups: a zero point beside each scale");
    f.add(
        "calibrate", &calibrate,
        "text by which weights are rounded: int8, int4 and fp8 by what their products come to, k-quants and "
        "iq4_nl by how much each channel counts");
    f.add("text", &text, "text by which perplexity is measured, before and after");
    f.add("tokenizer", &tokenizer, "directory or GGUF file of the tokenizer; empty: the model's own");
    f.add("context", &context, "tokens of a sequence of the texts").at_least(2);
    f.add("tokens", &tokens, "tokens of a text that are read at most").at_least(2);
    f.add("threads", &threads, "threads; 0: all cores").at_least(0);
    f.add("json", &json, "the report as one JSON object");
  }
};

base::Json json_of(const model::gguf::QuantizeReport& report) {
  base::Json tensors = base::Json::array();
  for (const model::gguf::QuantizedTensor& t : report.tensors) {
    tensors.push_back(base::Json::object({{"name", t.name},
                                          {"from", t.from},
                                          {"to", t.to},
                                          {"bytes_before", t.bytes_before},
                                          {"bytes_after", t.bytes_after},
                                          {"relative_error", t.relative},
                                          {"largest_error", t.largest},
                                          {"by_importance", t.by_importance},
                                          {"why", t.why}}));
  }
  return base::Json::object({{"bytes_before", report.bytes_before()},
                             {"bytes_after", report.bytes_after()},
                             {"tensors", std::move(tensors)}});
}

base::Json json_of(const model::hf::DirectoryReport& report) {
  base::Json layers = base::Json::array();
  for (const model::hf::QuantizedLayer& l : report.layers) {
    layers.push_back(base::Json::object({{"name", l.name},
                                         {"bytes_before", l.bytes_before},
                                         {"bytes_after", l.bytes_after},
                                         {"relative_error", l.relative},
                                         {"largest_error", l.largest},
                                         {"error_of_products", l.of_products},
                                         {"why", l.why}}));
  }
  return base::Json::object({{"bytes_before", report.bytes_before},
                             {"bytes_after", report.bytes_after},
                             {"tensors", std::move(layers)}});
}

std::string tokenizer_of(const QuantizeCommand& c) { return c.tokenizer.empty() ? c.model : c.tokenizer; }
PerplexityOptions reading(const QuantizeCommand& c) {
  return {.context = c.context, .tokens = c.tokens, .threads = c.threads};
}

double measured(const QuantizeCommand& c, const std::string& path) {
  return perplexity(open_model(path), tokenizer_of(c), base::read_file(c.text), reading(c));
}

Calibration calibration_of(const QuantizeCommand& c) {
  return Calibration(open_model(c.model), tokenizer_of(c), base::read_file(c.calibrate), reading(c));
}

/// Moments of the layers' inputs. One run of the model collects those of as many layers as its budget allows.
class LayerMoments {
 public:
  LayerMoments(Calibration calibration, std::vector<model::hf::LayerMatrix> layers)
      : calibration_(std::move(calibration)), layers_(std::move(layers)) {}

  std::vector<float> of(const model::hf::LayerMatrix& layer) {
    const std::string& name = layer.of_network.at(0);
    const auto depth = calibration_.depths().find(name);
    // A product that sums over experts reads the channels of all of them side by side, not of one expert.
    if (depth == calibration_.depths().end() || depth->second != layer.depth) return {};
    if (!known_.contains(name)) run_from(layer);
    return known_.at(name);
  }

 private:
  /// Collects the moments of this layer and of as many layers after it as fit the budget.
  void run_from(const model::hf::LayerMatrix& first) {
    constexpr int64_t kMostBytes = int64_t{1} << 30;
    std::set<std::string> names;
    int64_t bytes = 0;
    bool is_behind = false;
    for (const model::hf::LayerMatrix& layer : layers_) {
      is_behind |= layer.name == first.name;
      bytes += is_behind ? 4 * layer.depth * layer.depth : 0;
      if (is_behind && (names.empty() || bytes <= kMostBytes)) names.insert(layer.of_network.at(0));
    }
    known_ = calibration_.moments(names, true);
  }

  Calibration calibration_;
  std::vector<model::hf::LayerMatrix> layers_;
  Moments known_;
};

/// A model is read while its other form is written. A missing output is another place.
void require_another_place(const QuantizeCommand& c) {
  std::error_code none;
  base::require(!std::filesystem::equivalent(c.model, c.output, none), "'", c.output,
                "' is the model itself");
}

/// Writes the directory, prints the report for people, and returns the one for programs.
base::Json write_directory(const QuantizeCommand& c, base::ThreadPool& pool) {
  if (!std::filesystem::is_directory(c.model))
    base::fail_unsupported("--to ", c.to, " writes a Hugging Face directory from one; '", c.model,
                           "' is a file");
  base::require(!std::filesystem::exists(c.output) || std::filesystem::is_directory(c.output), "'", c.output,
                "' is a file, --to ", c.to, " writes a directory");
  require_another_place(c);
  using model::hf::DirectoryForm;
  const DirectoryForm form = c.to == "int8"   ? DirectoryForm::int8
                             : c.to == "int4" ? DirectoryForm::int4
                                              : DirectoryForm::fp8;
  const model::hf::DirectoryOptions options{.to = form, .group = c.group, .has_zeros = c.zeros};
  model::hf::MomentsOf moments = [](const model::hf::LayerMatrix&) { return std::vector<float>{}; };
  if (!c.calibrate.empty()) {
    auto known =
        std::make_shared<LayerMoments>(calibration_of(c), model::hf::plan_directory(c.model, options).layers);
    moments = [known](const model::hf::LayerMatrix& layer) { return known->of(layer); };
  }
  const auto report = model::hf::write_quantized_directory(c.model, c.output, options, moments, pool);
  if (!c.json) std::cout << report.text();
  return json_of(report);
}

base::Json write_gguf(const QuantizeCommand& c, base::ThreadPool& pool) {
  base::require(!std::filesystem::is_directory(c.output), "'", c.output, "' is a directory");
  require_another_place(c);
  base::require(c.text.empty() || c.output.ends_with(".gguf"), "'", c.output,
                "' does not end in .gguf, so it could not be opened to measure --text");
  base::require(c.group == 0 && !c.zeros, "--group and --zeros are for int8 and int4, not for ", c.to);
  const bool is_directory = std::filesystem::is_directory(c.model);
  const model::gguf::GgufSource source = is_directory
                                             ? model::gguf::huggingface_source(c.model)
                                             : model::gguf::gguf_source(tensor::GgufFile::open(c.model));
  model::gguf::Importance importance;
  if (!c.calibrate.empty()) {
    const Calibration calibration = calibration_of(c);
    std::set<std::string> names;
    for (const auto& [name, depth] : calibration.depths()) names.insert(name);
    importance = calibration.moments(names, false);
  }
  const auto report = model::gguf::write_quantized(source, c.to, c.output, pool, importance);
  if (!c.json) std::cout << report.text();
  return json_of(report);
}

}  // namespace

int quantize_main(std::span<const std::string> words, base::Env&) {
  QuantizeCommand c;
  std::vector<std::string> flags(words.begin(), words.end());
  std::replace(flags.begin(), flags.end(), std::string("-o"), std::string("--output"));
  if (!parse(c, flags, "quantize")) return 0;
  base::ThreadPool pool(c.threads > 0 ? c.threads : base::read_cpu_info().threads());
  const bool writes_directory = c.to == "int8" || c.to == "int4" || c.to == "fp8";
  base::Json json = writes_directory ? write_directory(c, pool) : write_gguf(c, pool);
  if (!c.text.empty()) {
    const double before = measured(c, c.model), after = measured(c, c.output);
    json.set("perplexity_before", before);
    json.set("perplexity_after", after);
    if (!c.json) std::cout << "perplexity " << before << " -> " << after << "\n";
  }
  if (c.json) std::cout << json.dump() << "\n";
  return 0;
}

std::string quantize_markdown() { return options_markdown<QuantizeCommand>(); }

}  // namespace trireme::cli
