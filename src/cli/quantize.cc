// trireme quantize: writes a language model as a GGUF file in another precision, and says what that costs.
#include <algorithm>
#include <filesystem>
#include <iostream>

#include "base/files/file.h"
#include "base/machine/cpu_info.h"
#include "cli/model_input.h"
#include "cli/perplexity.h"
#include "cli/verb.h"
#include "model/gguf/quantize.h"
#include "model/load/load.h"

namespace trireme::cli {
namespace {

struct QuantizeCommand {
  std::string model, output, to = "q4_k";
  std::string text, tokenizer;
  int64_t context = 512, tokens = 8192;
  int threads = 0;
  bool json = false;

  void fields(base::OptionList& f) {
    f.add("model", &model, "GGUF file, or Hugging Face directory of a decoder").positional().required();
    f.add("output", &output, "the GGUF file to write; also -o").required();
    f.add("to", &to,
          "of matrices: f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, q2_k, q3_k, q4_k, q5_k, q6_k, iq4_nl, "
          "mxfp4");
    f.add("text", &text, "text by which perplexity is measured, before and after");
    f.add("tokenizer", &tokenizer, "directory or GGUF file of the tokenizer; empty: the model's own");
    f.add("context", &context, "perplexity: tokens of a sequence").at_least(2);
    f.add("tokens", &tokens, "perplexity: tokens of the text that are read at most").at_least(2);
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
                                          {"why", t.why}}));
  }
  return base::Json::object({{"bytes_before", report.bytes_before()},
                             {"bytes_after", report.bytes_after()},
                             {"tensors", std::move(tensors)}});
}

double measured(const QuantizeCommand& c, const std::string& path) {
  const std::string tokenizer = c.tokenizer.empty() ? c.model : c.tokenizer;
  return perplexity(open_model(path), tokenizer, base::read_file(c.text),
                    {.context = c.context, .tokens = c.tokens, .threads = c.threads});
}

}  // namespace

int quantize_main(std::span<const std::string> words, base::Env&) {
  QuantizeCommand c;
  std::vector<std::string> flags(words.begin(), words.end());
  std::replace(flags.begin(), flags.end(), std::string("-o"), std::string("--output"));
  if (!parse(c, flags, "quantize")) return 0;
  base::require(!std::filesystem::is_directory(c.output), "'", c.output, "' is a directory");
  base::ThreadPool pool(c.threads > 0 ? c.threads : base::read_cpu_info().threads());
  const bool is_directory = std::filesystem::is_directory(c.model);
  const model::gguf::GgufSource source = is_directory
                                             ? model::gguf::huggingface_source(c.model)
                                             : model::gguf::gguf_source(tensor::GgufFile::open(c.model));
  const model::gguf::QuantizeReport report = model::gguf::write_quantized(source, c.to, c.output, pool);
  base::Json json = json_of(report);
  if (!c.json) std::cout << report.text();
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
