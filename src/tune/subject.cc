// The model that is tuned.
#include "tune/subject.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>

#include "base/machine/cpu_info.h"
#include "base/crc32c.h"
#include "base/files/file.h"
#include "lower/batch_proof.h"
#include "load/requests/payload.h"
#include "model/load/load.h"
#include "model/onnx/tensor_proto.h"
#include "serve/config/options.h"
#include "serve/repository/repository_files.h"
#include "serve/models/model_file.h"
#include "data/text/text_encoder.h"
#include "tune/model_directory.h"

namespace trireme::tune {
namespace {

namespace fs = std::filesystem;
using tensor::Tensor;

/// Lengths that the server pads texts to when nobody says otherwise.
std::vector<int64_t> length_buckets(int64_t most) {
  std::vector<int64_t> buckets = serve::ServeOptions().length_buckets;
  std::erase_if(buckets, [most](int64_t b) { return b >= most; });
  buckets.push_back(most);
  return buckets;
}

/// A repository's model directory stands for its highest version that serves.
std::string model_path(const std::string& given, const serve::ModelConfig& config,
                       const serve::OtherModels& others) {
  if (!fs::is_directory(given) || others.has(given)) return given;
  const bool has_versions =
      std::any_of(fs::directory_iterator(given), fs::directory_iterator(),
                  [](const auto& e) { return serve::version_number(e.path().filename().string()) > 0; });
  return has_versions ? serve::served_versions(given, config, others).rbegin()->second : given;
}

/// What a measurement means depends on these: the model, the machine, the program, the traffic.
std::string subject_key(const Subject& subject, const TuneOptions& o) {
  std::string all = o.text_file.empty() ? "" : base::read_file(o.text_file);
  all += subject.config_text;
  for (const Variant& v : subject.variants) all += v.name + files_hash(v.path, v.external);
  const base::CpuInfo cpu = base::read_cpu_info();
  all += base::concat(cpu.model, cpu.allowed.size(), ' ', cpu.quota, ' ', o.batch, ' ', o.seed, ' ',
                      o.probe.ns, ' ', o.trial.ns, ' ', o.stability);
  for (const auto* list : {&o.shape, &o.range}) {
    for (const std::string& text : *list) all += text + "\n";
  }
  // The program itself is its version: other kernels, other times.
  const base::MappedFile program("/proc/self/exe");
  return base::concat(base::crc32c(all), '-', base::crc32c(program.text()));
}

std::vector<Variant> variants_of(const TuneOptions& options, const std::string& path) {
  std::vector<Variant> list;
  for (const std::string& text : options.precision) {
    const std::vector<std::string> names{"f32", "bf16", "f16", "fp8"};
    const auto at = std::find(names.begin(), names.end(), text);
    base::require(at != names.end(), "--precision is f32, bf16, f16 or fp8, not '", text,
                  "'; a model in int8 is a --variant");
    list.push_back(
        {.name = text, .path = path, .precision = static_cast<passes::Precision>(at - names.begin())});
  }
  base::require(!list.empty(), "no --precision");
  for (const std::string& text : options.variant) {
    const size_t equals = text.find('=');
    base::require(equals != std::string::npos && equals > 0, "--variant is name=PATH, not '", text, "'");
    list.push_back({.name = text.substr(0, equals), .path = text.substr(equals + 1)});
  }
  for (size_t i = 0; i < list.size(); ++i) {
    for (size_t k = 0; k < i; ++k)
      base::require(list[i].name != list[k].name, "two variants are called '", list[i].name, "'");
  }
  return list;
}

/// Extents of one request's input: as asked, else the model's with the batch in front.
tensor::Dims request_dims(const serve::TensorConfig& input, const Subject& subject, const TuneOptions& o) {
  for (const std::string& text : o.shape) {
    const size_t colon = text.rfind(':');
    if (colon == std::string::npos || text.substr(0, colon) != input.name) continue;
    tensor::Dims dims;
    for (size_t at = colon + 1; at <= text.size();) {
      const size_t end = std::min(text.find(',', at), text.size());
      char* stop = nullptr;
      const std::string word = text.substr(at, end - at);
      dims.push_back(std::strtoll(word.c_str(), &stop, 10));
      base::require(!word.empty() && *stop == '\0' && dims.back() >= 0, "--shape is name:1,3,224,224, not '",
                    text, "'");
      at = end + 1;
    }
    return dims;
  }
  tensor::Dims dims = input.dims;
  if (subject.is_batched()) dims.insert(dims.begin(), o.batch);
  for (int64_t d : dims)
    base::require(d >= 0, "input '", input.name, "' has an open extent: give --shape ", input.name, ":...");
  return dims;
}

/// The same random elements that the load generator sends as its first request.
void make_tensor_traffic(Subject& subject, const TuneOptions& o) {
  Group group;
  for (size_t i = 0; i < subject.config.inputs.size(); ++i) {
    const serve::TensorConfig& input = subject.config.inputs[i];
    const tensor::Dims dims = request_dims(input, subject, o);
    base::require(!subject.is_batched() || (!dims.empty() && dims[0] == o.batch),
                  "the first extent of input '", input.name, "' is the batch: give --batch");
    double low = 0, high = 1;
    for (const std::string& text : o.range) {
      if (text.rfind(input.name + ":", 0) != 0) continue;
      char* stop = nullptr;
      low = std::strtod(text.c_str() + input.name.size() + 1, &stop);
      base::require(*stop == ',', "--range is name:low,high, not '", text, "'");
      high = std::strtod(stop + 1, &stop);
    }
    const std::string bytes = load::random_elements(serve::wire_name(input.type), tensor::element_count(dims),
                                                    low, high, (static_cast<uint64_t>(o.seed) << 20) + i);
    Tensor t = Tensor::empty(*input.type, dims);
    base::check(static_cast<size_t>(t.bytes()) == bytes.size(), "random bytes do not fill input ",
                input.name);
    std::copy_n(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size(), t.mutable_raw());
    group.example.push_back(std::move(t));
  }
  subject.groups.push_back(std::move(group));
}

std::vector<std::string> texts_of(const TuneOptions& o) {
  base::require(
      !o.text_file.empty(),
      "an encoder's costs depend on the lengths of its texts: give --text-file, one sentence a line");
  base::require(o.batch == 1, "texts are sent one a request: --batch 1");
  std::vector<std::string> texts;
  const std::string all = base::read_file(o.text_file);
  for (size_t at = 0; at < all.size();) {
    const size_t end = std::min(all.find('\n', at), all.size());
    if (end > at) texts.push_back(all.substr(at, end - at));
    at = end + 1;
  }
  base::require(!texts.empty(), "'", o.text_file, "' has no lines");
  return texts;
}

void make_text_traffic(Subject& subject, const model::Model& model, const TuneOptions& o) {
  const data::TextEncoder encoder(model.directory,
                                  model.config.get_or<int64_t>("max_position_embeddings", 512));
  subject.texts = texts_of(o);
  subject.padding.length_buckets = length_buckets(encoder.max_tokens());
  subject.padding.padded_inputs = {0, 1};
  for (const data::TokenGroup& g : encoder.encode(subject.texts, subject.padding.length_buckets)) {
    const int64_t tokens = sched::bucket_of(subject.padding.length_buckets, g.ids.dims()[1]);
    subject.groups.push_back(
        {.share = static_cast<double>(g.rows.size()) / static_cast<double>(subject.texts.size()),
         .example = {g.ids.rows(0, 1).clone(), g.mask.rows(0, 1).clone()},
         .name = base::concat(tokens, " tokens")});
  }
}

bool is_encoder(const model::Model& model) {
  const auto& names = model.graph.output_names();
  return model.format == "huggingface" &&
         std::find(names.begin(), names.end(), "sentence_embedding") != names.end();
}

/// The configuration as the server would complete it.
void make_config(Subject& subject, const ir::Graph& graph) {
  const bool is_told = subject.config.max_batch_size.has_value() || subject.config.has_dynamic_batching;
  if (!is_told && !subject.is_text && !lower::why_not_batched(graph).empty())
    subject.config.max_batch_size = 0;
  const std::vector<serve::TensorConfig> given = std::exchange(subject.config.inputs, {});
  for (const serve::TensorConfig& t : given) {
    if (!subject.is_text || t.name != "text") subject.config.inputs.push_back(t);
  }
  serve::complete_config(subject.config, graph, 64);
}

/// Inputs to compare variants on: of every test_data_set_*, else two random requests of each group.
std::vector<std::vector<Tensor>> check_inputs(const Subject& subject, const TuneOptions& o) {
  std::vector<std::vector<Tensor>> sets;
  for (const Group& g : subject.groups) sets.push_back(g.example);
  if (o.test_data.empty()) return sets;
  sets.clear();
  const size_t count = subject.variants[0].model->graph().inputs().size();
  base::require(fs::is_directory(o.test_data), "no directory '", o.test_data, "'");
  for (const auto& entry : fs::directory_iterator(o.test_data)) {
    if (entry.path().filename().string().rfind("test_data_set_", 0) != 0) continue;
    std::vector<Tensor>& in = sets.emplace_back();
    for (size_t i = 0; i < count; ++i)
      in.push_back(model::onnx::read_tensor_file((entry.path() / base::concat("input_", i, ".pb")).string()));
  }
  base::require(!sets.empty(), "no test_data_set_* in '", o.test_data, "'");
  return sets;
}

/// Largest error of a variant over all sets; the reference is the first variant's file in f32.
void check_accuracy(Subject& subject, const TuneOptions& o) {
  const std::vector<std::vector<Tensor>> sets = check_inputs(subject, o);
  engine::Session exact(subject.variants[0].model);
  std::vector<std::vector<Tensor>> wanted;
  for (const auto& set : sets) {
    wanted.emplace_back();
    for (const Tensor& t : exact.run(set)) wanted.back().push_back(t.clone());
  }
  for (Variant& v : subject.variants) {
    if (v.precision == passes::Precision::f32 && v.model == subject.variants[0].model) continue;
    try {
      engine::Session session(v.model, {.strategy = {.precision = {.compute = v.precision}}});
      for (size_t s = 0; s < sets.size(); ++s) {
        const std::vector<Tensor> got = session.run(sets[s]);
        base::require(got.size() == wanted[s].size(), "it has another number of outputs");
        for (size_t i = 0; i < got.size(); ++i)
          v.error = std::max(v.error, output_error(got[i], wanted[s][i]));
      }
    } catch (const base::Error& e) {
      v.refusal = e.message();
      continue;
    }
    if (!(v.error <= o.tolerance))
      v.refusal = base::concat("error ", v.error, " against f32 is past --tolerance ", o.tolerance);
  }
}

/// What the importer has opened beside the model's own file.
std::vector<std::string> external_files(const model::Model& model, const std::string& path) {
  std::vector<std::string> names;
  for (const auto& file : model.files) {
    if (file->path() != path)
      names.push_back(fs::path(file->path()).lexically_relative(model.directory).string());
  }
  return names;
}

void load_variants(Subject& subject, const serve::OtherModels& others) {
  for (size_t i = 0; i < subject.variants.size(); ++i) {
    Variant& v = subject.variants[i];
    const auto same = std::find_if(subject.variants.begin(), subject.variants.begin() + static_cast<long>(i),
                                   [&](const Variant& earlier) { return earlier.path == v.path; });
    try {
      if (same != subject.variants.begin() + static_cast<long>(i)) {
        v.model = same->model;
        v.external = same->external;
      } else {
        model::Model opened = serve::open_as_tensors(v.path, others);
        v.external = external_files(opened, v.path);
        v.model = std::make_shared<const engine::PreparedModel>(std::move(opened.graph));
      }
    } catch (const base::Error& e) {
      throw e.with(base::concat("variant '", v.name, "'"));
    }
    base::require(v.model->graph().inputs().size() == subject.variants[0].model->graph().inputs().size(),
                  "variant '", v.name, "' has other inputs than the model");
  }
}

}  // namespace

std::string default_name(const std::string& given) {
  fs::path path = fs::weakly_canonical(given);
  std::string name = fs::is_directory(path) ? path.filename().string() : path.stem().string();
  if (name == "model" && path.has_parent_path()) name = path.parent_path().filename().string();
  return name;
}

std::string files_hash(const std::string& path, const std::vector<std::string>& beside) {
  std::vector<std::string> lines;
  const auto add = [&](const fs::path& file) {
    lines.push_back(
        base::concat(file.filename().string(), ' ', base::crc32c(base::MappedFile(file.string()).text())));
  };
  if (!fs::is_directory(path)) {
    add(path);
    for (const std::string& name : beside) add(fs::path(path).parent_path() / name);
  } else {
    for (const auto& entry : fs::recursive_directory_iterator(path)) {
      if (entry.is_regular_file() && entry.file_size() > 0) add(entry.path());
    }
  }
  std::sort(lines.begin(), lines.end());
  std::string all;
  for (const std::string& line : lines) all += line + "\n";
  return base::concat(base::crc32c(all), '/', lines.size());
}

std::string text_hash(const std::string& text) { return base::concat(base::crc32c(text)); }

double output_error(const Tensor& actual, const Tensor& exact) {
  if (actual.dims() != exact.dims()) return std::numeric_limits<double>::infinity();
  const std::vector<double> a = actual.to_doubles(), b = exact.to_doubles();
  double largest = 0, error = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::isfinite(b[i])) largest = std::max(largest, std::abs(b[i]));
    if (a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) continue;
    if (!std::isfinite(a[i]) || !std::isfinite(b[i])) return std::numeric_limits<double>::infinity();
    error = std::max(error, std::abs(a[i] - b[i]));
  }
  return error == 0 ? 0 : error / largest;
}

Subject open_subject(const TuneOptions& options, const serve::OtherModels& others) {
  Subject subject;
  subject.given = options.model.at(0);
  if (!fs::exists(subject.given)) base::fail(base::ErrorCode::not_found, "no model at '", subject.given, "'");
  subject.name = options.name.empty() ? default_name(subject.given) : options.name;
  serve::check_model_name(subject.name);
  require_elsewhere(subject.given, options.out);
  if (fs::is_directory(subject.given)) {
    subject.config = serve::read_config(subject.given, fs::path(default_name(subject.given)).string());
    const std::string file = subject.given + "/config.pbtxt";
    if (base::file_exists(file)) subject.config_text = base::read_file(file);
  }
  if (subject.config.sequence || subject.config.ensemble)
    base::fail_unsupported("a model with sequence_batching or ensemble_scheduling is not tuned");
  const std::string path = model_path(subject.given, subject.config, others);
  const bool is_other = others.has(path);
  const model::Model model = is_other ? others.open(path) : model::load_model(path);
  subject.is_text = is_encoder(model);
  subject.variants = variants_of(options, path);
  for (const Variant& v : subject.variants) require_elsewhere(v.path, options.out);
  load_variants(subject, others);
  make_config(subject, subject.variants[0].model->graph());
  subject.padding.is_batched = subject.is_batched();
  base::require(subject.is_batched() || options.batch == 1, "the model has no batch dimension: --batch 1");
  subject.is_text ? make_text_traffic(subject, model, options) : make_tensor_traffic(subject, options);
  check_accuracy(subject, options);
  subject.key = subject_key(subject, options);
  return subject;
}

}  // namespace trireme::tune
