// The options of a batch job that say which model runs, on what, and how.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/text/options.h"
#include "data/image/picture_input.h"
#include "passes/strategy.h"

namespace trireme::batch {

inline constexpr int64_t kMostRows = int64_t{1} << 40;  ///< of options: sums of a few of them are numbers too

/// What a model is opened with, in the words of `trireme run` and `trireme generate`.
struct ModelOptions {
  std::string model;          ///< ONNX file, directory of a model, GGUF file, or "zoo:NAME"
  std::string task = "auto";  ///< "auto", "run", "embed", "classify", "generate", "score"
  /// "model_input=column"; inputs that are not named take the column of their own name.
  std::vector<std::string> columns;
  passes::Precision precision = passes::Precision::f32;  ///< of products
  passes::WeightOptions weights = {};
  std::string device = "cpu";  ///< cpu, cuda, cuda:N, emulated
  int threads = 0;             ///< of an instance; 0: all processors over the instances
  int instances = 1;           ///< copies of the model that run side by side
  int front_threads = 0;       ///< that tokenize and decode; 0: chosen
  int tp = 1;                  ///< tensor-parallel ranks of one instance, or of each of its stages
  int ep = 1;                  ///< as many as tp: whole experts are shared out over those ranks
  int pp = 1;                  ///< pipeline stages of one instance, each with some of the layers
  int64_t batch_rows = 0;      ///< rows of a batch at most; 0: chosen
  int64_t window_rows = 0;     ///< rows among which like lengths batch together; 0: chosen
  data::PixelValues image_values = data::PixelValues::off;  ///< what the bytes of pictures become
  std::string labels;      ///< file with the names of a classifier's classes; empty: those that its model has
  int64_t max_length = 0;  ///< tokens of a text at most, cut behind them; 0: what the model knows
  std::string tokenizer;   ///< directory or file; empty: the model's own
  std::string prompt;      ///< text around columns, "{column}" stands for one; empty: the column alone
  bool chat = false;       ///< a prompt is what a user says: the chat template stands around it
  std::string system;      ///< what the system says first, with `chat`
  std::string chat_template;  ///< file in Jinja; empty: the tokenizer's
  int64_t max_tokens = 128;   ///< of an answer
  double temperature = 0;     ///< 0: the likeliest token
  double top_p = 1;
  int64_t top_k = 0;              ///< 0: all
  int64_t seed = 0;               ///< draws of a row depend on it, and on the row's own content alone
  std::vector<std::string> stop;  ///< texts that end an answer
  std::string adapter;            ///< directory of an adapter (LoRA) that answers; empty: the model alone
  int64_t max_adapters = 0;  ///< of `adapters/` in the model's directory, which lines in format openai name
  int64_t max_adapter_rank = 16;  ///< of those

  void fields(base::OptionList& f);
  /// How the model's graph becomes programs.
  passes::Strategy strategy() const;
  int ranks() const { return tp * pp; }
  /// Whether answers may differ by rounding from those of one stage. On the CPU they do in fp8, where the
  /// last product of each stage stays in 16 bits; and beside `tp` of graphs, whose stages meet between sums
  /// over ranks. Decoding stages go on with the sums themselves.
  bool stages_show(const std::string& of_task) const;
};

}  // namespace trireme::batch
