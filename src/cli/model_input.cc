// Reads models, input shapes and tensors for `run`, `inspect` and other verbs.
#include "cli/model_input.h"

#include <algorithm>
#include <random>
#include <set>

#include "model/load/load.h"
#include "model/zoo/resnet.h"
#include "model/zoo/zoo.h"
#include "train/task.h"

namespace trireme::cli {
namespace {

tensor::Dims parse_dims(const std::string& text) {
  tensor::Dims dims;
  size_t start = 0;
  while (start < text.size()) {
    const size_t end = std::min(text.find(',', start), text.size());
    size_t used = 0;
    const std::string word = text.substr(start, end - start);
    int64_t value = -1;
    try {
      value = std::stoll(word, &used);
    } catch (const std::exception&) {
      used = 0;
    }
    base::require(used == word.size() && value >= 0, "bad dimension '", word, "' in '", text, "'");
    dims.push_back(value);
    start = end + 1;
  }
  return dims;
}

tensor::Dims default_shape(const ir::Value& input, int64_t batch,
                           const std::map<std::string, int64_t>& named) {
  base::require(input.type.shape.has_rank(), "input '", input.name, "' has no declared rank; give --shape");
  tensor::Dims dims;
  bool first = true;
  for (const tensor::Dim& d : input.type.shape.dims()) {
    if (d.is_static()) {
      dims.push_back(d.value());
    } else if (const auto at = named.find(d.name()); at != named.end()) {
      dims.push_back(at->second);
    } else {
      dims.push_back(first ? batch : 1);
    }
    first = false;
  }
  return dims;
}

}  // namespace

model::Model open_model(const std::string& name, Content content) {
  constexpr std::string_view kZoo = "zoo:";
  const bool is_without = content == Content::none;
  if (train::has_checkpoint(name)) {
    model::Model model = train::model_of_checkpoint(name, {.places = {"."}});
    if (is_without) model::drop_content(model.graph);
    return model;
  }
  if (name.rfind(kZoo, 0) != 0) return model::load_model(name, {.is_without_content = is_without});
  model::AbsentParams absent;
  // Parses names such as zoo:gpt2:layers=2,width=64.
  const size_t colon = name.find(':', kZoo.size());
  const std::string network =
      name.substr(kZoo.size(), colon == std::string::npos ? colon : colon - kZoo.size());
  std::vector<std::string> options;
  for (size_t at = colon; at != std::string::npos;) {
    const size_t comma = name.find(',', at + 1);
    options.push_back(name.substr(at + 1, comma == std::string::npos ? comma : comma - at - 1));
    at = comma;
  }
  // Without options, a ResNet is built as inference benchmarks need it: with norms that are not trivial.
  for (const int64_t depth : {18, 34, 50, 101, 152}) {
    if (!options.empty() || network != base::concat("resnet", depth)) continue;
    return is_without ? model::zoo::resnet(model::zoo::random_resnet_config(depth), absent)
                      : model::zoo::random_resnet(depth);
  }
  return model::zoo::build(network, options, is_without ? &absent : nullptr);
}

std::pair<std::string, std::string> split_assignment(const std::string& text) {
  const size_t at = text.find('=');
  base::require(at != std::string::npos && at > 0, "expected name=value, got '", text, "'");
  return {text.substr(0, at), text.substr(at + 1)};
}

std::vector<tensor::Dims> input_shapes(const ir::Graph& graph, int64_t batch,
                                       const std::vector<std::string>& given,
                                       const std::vector<std::string>& dims) {
  std::map<std::string, int64_t> named;
  for (const std::string& text : dims) {
    const auto [name, value] = split_assignment(text);
    const tensor::Dims one = parse_dims(value);
    base::require(one.size() == 1, "--dim takes name=number, got '", text, "'");
    named[name] = one[0];
  }
  std::map<std::string, tensor::Dims> shapes;
  for (const std::string& text : given) {
    const size_t at = text.rfind(':');
    base::require(at != std::string::npos, "--shape takes name:1,3,224,224, got '", text, "'");
    shapes[text.substr(0, at)] = parse_dims(text.substr(at + 1));
  }
  std::vector<tensor::Dims> result;
  for (ir::ValueId id : graph.inputs()) {
    const ir::Value& v = graph.value(id);
    const auto at = shapes.find(v.name);
    result.push_back(at != shapes.end() ? at->second : default_shape(v, batch, named));
    if (at != shapes.end()) shapes.erase(at);
  }
  base::require(shapes.empty(), "the model has no input '", shapes.empty() ? "" : shapes.begin()->first, "'");
  return result;
}

int64_t rows_read_by(const ir::Graph& graph, ir::ValueId input) {
  int64_t rows = INT64_MAX;
  std::set<ir::ValueId> holders{input};  // of elements of the input
  for (const ir::Node& node : graph.nodes()) {
    for (size_t k = 0; node.op != nullptr && k < node.in.size(); ++k) {
      if (node.in[k] == ir::kNoValue || !holders.contains(node.in[k])) continue;
      if (ir::moves_operand(node.op->schema, k)) holders.insert(node.out.begin(), node.out.end());
      if (node.op_name() != "gather" || k != 1) continue;
      const tensor::Shape& table = graph.type(node.in[0]).shape;
      if (!table.has_rank() || table.rank() == 0) continue;
      const tensor::Dim& extent = table[ir::normal_axis(node.attrs.get_int("axis", 0), table.rank())];
      if (extent.is_static()) rows = std::min(rows, extent.value());
    }
  }
  return rows;
}

tensor::Tensor random_tensor(tensor::DType dtype, const tensor::Dims& dims, uint64_t seed, int64_t below) {
  tensor::Tensor t = tensor::Tensor::zeros(dtype, dims);
  std::mt19937_64 engine(seed);
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int64_t> small(0, std::clamp<int64_t>(below - 1, 0, 100));
  tensor::visit_dtype(dtype, [&](auto zero) {
    using T = decltype(zero);
    for (T& x : t.mutable_data<T>()) {
      if (tensor::is_float(dtype)) {
        x = static_cast<T>(normal(engine));
      } else {
        x = dtype == tensor::DType::boolean ? static_cast<T>(1) : static_cast<T>(small(engine));
      }
    }
  });
  return t;
}

}  // namespace trireme::cli
