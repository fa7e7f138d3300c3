// The model that is tuned, as the server would serve it: its variants, its traffic, and where its files lie.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/session/session.h"
#include "sched/batch.h"
#include "serve/config/model_config.h"
#include "serve/config/other_models.h"
#include "tune/tune_options.h"

namespace trireme::tune {

/// One form of the model: a file and the precision it runs in.
struct Variant {
  std::string name;  ///< "f32", "bf16", or as --variant names it
  std::string path;  ///< of the model itself: a file or a directory that model readers take
  passes::Precision precision = passes::Precision::f32;
  double error = 0;     ///< against f32: largest over all outputs, of the output's largest value
  std::string refusal;  ///< why it does not compete; empty: it does
  /// Files that an ONNX file has beside itself, its external data, as it names them.
  std::vector<std::string> external = {};
  std::shared_ptr<const engine::PreparedModel> model;
};

/// Requests that may share a batch, by an example. Tensor models have one group, texts one a length bucket.
struct Group {
  double share = 1;                     ///< of the traffic
  std::vector<tensor::Tensor> example;  ///< inputs of one request, in the model's order
  std::string name;                     ///< "32 tokens"; empty for the only one
};

struct Subject {
  std::string name;
  std::string given;          ///< path as given
  serve::ModelConfig config;  ///< completed
  std::string config_text;    ///< of the config.pbtxt that was there; empty: none
  std::vector<Variant> variants;
  std::vector<Group> groups;
  sched::Padding padding;  ///< without row buckets
  bool is_text = false;
  std::vector<std::string> texts;  ///< what is sent; empty: tensors
  std::string key;                 ///< hash of files and of everything that decides what a measurement means

  bool is_batched() const { return config.is_batched(); }
};

/// Loads the model and all its variants, makes the traffic, checks every variant's results against the
/// first's in f32. Throws not_found, unsupported or invalid_argument for what cannot be tuned.
Subject open_subject(const TuneOptions& options, const serve::OtherModels& others);

/// The name that a model has by its file or directory.
std::string default_name(const std::string& given);
/// Of names and checksums of all files of a model, for a file with those that lie `beside` it; of a text.
std::string files_hash(const std::string& path, const std::vector<std::string>& beside = {});
std::string text_hash(const std::string& text);

/// Largest |actual - exact| of an output over its largest finite |exact|; infinite where one of the two is
/// infinite or no number and the other one is something else.
double output_error(const tensor::Tensor& actual, const tensor::Tensor& exact);

}  // namespace trireme::tune
