// Runs one ONNX backend case: loads the model, feeds each data set, and compares with the expected outputs.
#include "tests/onnx_case.h"

#include <cmath>
#include <filesystem>
#include <set>

#include "base/files/file.h"
#include "engine/session/session.h"
#include "model/onnx/import.h"
#include "model/onnx/proto.h"
#include "model/onnx/tensor_proto.h"

namespace trireme::tests {
namespace {

namespace fs = std::filesystem;
using base::Json;
using tensor::Tensor;

struct Tolerance {
  double relative = 1e-3, absolute = 1e-7;
};

struct DataSet {
  std::string name;
  std::vector<Tensor> inputs, outputs;
};

void collect_ops(const std::vector<model::onnx::NodeProto>& nodes, std::set<std::string>& ops) {
  for (const auto& node : nodes) {
    const bool is_default = node.domain.empty() || node.domain == "ai.onnx";
    ops.insert(is_default ? std::string(node.op_type) : base::concat(node.domain, ":", node.op_type));
    for (const auto& a : node.attribute) {
      if (a.g) collect_ops(a.g->node, ops);
    }
  }
}

/// Collects the kinds of inputs and outputs that are not numeric tensors: "sequence", "optional", "string" …
void collect_kinds(const std::vector<model::onnx::ValueInfoProto>& values, std::set<std::string>& kinds) {
  for (const auto& v : values) {
    const bool is_tensor = v.type.kind == "tensor";
    kinds.insert(is_tensor && v.type.elem_type == 8 ? "string" : std::string(v.type.kind));
  }
}

Json list(const std::set<std::string>& items) {
  Json out = Json::array();
  for (const std::string& item : items) out.push_back(item);
  return out;
}

Tolerance read_tolerance(const fs::path& model_path) {
  Tolerance t;
  const fs::path file = model_path.parent_path() / "data.json";
  if (!fs::exists(file)) return t;
  const Json json = base::parse_json(base::read_file(file.string()));
  t.relative = json.get_or("rtol", t.relative);
  t.absolute = json.get_or("atol", t.absolute);
  return t;
}

std::vector<Tensor> read_tensors(const fs::path& dir, const std::string& stem) {
  std::vector<Tensor> tensors;
  for (size_t i = 0;; ++i) {
    const fs::path file = dir / base::concat(stem, i, ".pb");
    if (!fs::exists(file)) return tensors;
    // An empty file stands for an absent optional value.
    tensors.push_back(fs::file_size(file) == 0 ? Tensor() : model::onnx::read_tensor_file(file.string()));
  }
}

/// Reads the test_data_set_* directories beside the model.
std::vector<DataSet> read_data(const fs::path& model_path) {
  std::vector<fs::path> dirs;
  for (const auto& entry : fs::directory_iterator(model_path.parent_path())) {
    if (entry.path().filename().string().starts_with("test_data_set_")) dirs.push_back(entry.path());
  }
  std::sort(dirs.begin(), dirs.end());
  std::vector<DataSet> sets;
  for (const fs::path& dir : dirs) {
    sets.push_back({dir.filename().string(), read_tensors(dir, "input_"), read_tensors(dir, "output_")});
  }
  return sets;
}

/// The structure-only nets come with one output; element i of their input is i / (number of elements).
DataSet light_data(const fs::path& model_path, const ir::Graph& graph) {
  DataSet set{"light", {}, read_tensors(model_path.parent_path(), model_path.stem().string() + "_output_")};
  for (ir::ValueId id : graph.inputs()) {
    const auto& type = graph.type(id);
    Tensor t = Tensor::empty(tensor::DType::f32, type.shape.to_dims());
    auto values = t.mutable_data<float>();
    const auto count = static_cast<double>(values.size());
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(static_cast<double>(i) / count);
    set.inputs.push_back(std::move(t));
  }
  return set;
}

/// Elements as doubles if the type has arithmetic, otherwise the raw codes, which are compared exactly.
std::vector<double> to_numbers(const Tensor& t) {
  const int bits = tensor::bits_of(t.dtype());
  std::vector<double> out;
  if (bits >= 8 && tensor::bits_of(t.dtype()) != 8) return t.to_doubles();
  if (bits == 8 && (tensor::is_integer(t.dtype()) || t.dtype() == tensor::DType::boolean))
    return t.to_doubles();
  for (int64_t i = 0; i < t.elements(); ++i) {
    const int64_t at = i * bits / 8;
    const auto shift = static_cast<unsigned>(i * bits % 8);
    const unsigned byte = static_cast<unsigned>(t.raw()[at]) >> shift;
    out.push_back(static_cast<double>(byte & ((1u << bits) - 1)));
  }
  return out;
}

bool is_close(double got, double want, const Tolerance& tolerance) {
  if (std::isnan(want)) return std::isnan(got);
  if (std::isinf(want) || std::isinf(got)) return got == want;
  return std::abs(got - want) <= tolerance.absolute + tolerance.relative * std::abs(want);
}

/// Returns what differs; empty if nothing does.
std::string compare(const Tensor& got, const Tensor& want, const Tolerance& tolerance) {
  if (!want.defined()) return "";
  if (got.dtype() != want.dtype() || got.dims() != want.dims()) {
    return base::concat("is ", got.type().to_string(), ", expected ", want.type().to_string());
  }
  if (got.same_as(want)) return "";
  if (tensor::is_integer(got.dtype()) && tensor::bits_of(got.dtype()) == 64) {
    const auto a = got.dtype() == tensor::DType::i64 ? got.to_ints() : std::vector<int64_t>();
    if (!a.empty() && a != want.to_ints()) return "has other 64-bit integers than expected";
  }
  const std::vector<double> a = to_numbers(got), b = to_numbers(want);
  // The ONNX runner allows two units in the last place for bfloat16.
  Tolerance limit = tolerance;
  if (got.dtype() == tensor::DType::bf16) limit.relative = std::max(limit.relative, 0x1p-6);
  size_t wrong = 0, first = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (is_close(a[i], b[i], limit)) continue;
    if (wrong++ == 0) first = i;
  }
  if (wrong == 0) return "";
  return base::concat("differs in ", wrong, " of ", a.size(), " elements, first at ", first, ": ", a[first],
                      " for ", b[first]);
}

/// True if results come from a random generator: only types and shapes can match the reference.
bool is_random(const ir::Graph& graph) {
  for (const ir::Node& node : graph.nodes()) {
    const bool is_dropout = node.op_name() == "dropout";
    const bool is_training = is_dropout && node.in.size() > 2 && node.in[2] != ir::kNoValue;
    if (node.op->schema.is_random && (!is_dropout || is_training)) return true;
  }
  return false;
}

/// Runs one data set; throws base::Error that says what is wrong.
std::string run_set(engine::Session& session, const DataSet& set, const Tolerance& tolerance, bool random) {
  const auto& inputs = session.graph().inputs();
  base::require(set.inputs.size() == inputs.size(), set.name, " has ", set.inputs.size(),
                " inputs, the model ", inputs.size());
  const std::vector<Tensor> got = session.run(set.inputs);
  base::require(!set.outputs.empty(), set.name, " expects no output");
  base::require(got.size() >= set.outputs.size(), set.name, " expects ", set.outputs.size(), " outputs, got ",
                got.size());
  for (size_t i = 0; i < set.outputs.size(); ++i) {
    const std::string wrong = compare(got[i], set.outputs[i], tolerance);
    if (wrong.empty()) continue;
    if (random && got[i].type() == set.outputs[i].type())
      return "random results: only type and shape were compared";
    base::fail_invalid("output '", session.graph().output_names()[i], "' ", wrong);
  }
  return "";
}

/// The device that a case runs on, and what the run reports about it.
struct Place {
  std::string device;
  std::string host;  ///< operators that ran on the host because the device has no kernel for them
};

std::string run_model(const std::string& path, Place& place) {
  const Tolerance tolerance = read_tolerance(path);
  const auto file = base::MappedFile::open(path);
  model::Model loaded = model::onnx::import_onnx(file->text(), file, fs::path(path).parent_path().string());
  const bool random = is_random(loaded.graph);
  std::vector<DataSet> sets = read_data(path);
  if (sets.empty()) sets.push_back(light_data(path, loaded.graph));
  auto prepared = std::make_shared<engine::PreparedModel>(std::move(loaded.graph));
  engine::Session session(prepared, {.device = place.device, .threads = 1});
  std::string note;
  for (const DataSet& set : sets) {
    const std::string said = run_set(session, set, tolerance, random);
    if (!said.empty()) note = said;
    if (place.device == "cpu") continue;
    std::vector<tensor::Dims> shapes;
    for (const Tensor& t : set.inputs) shapes.push_back(t.dims());
    place.host = session.prepare(shapes).host_operators();
    run_set(session, set, tolerance, random);  // the second run is recorded
  }
  return note;
}

}  // namespace

Json describe_case(const std::string& model_path) {
  Json line = Json::object();
  const fs::path path(model_path);
  line.set("case", path.stem() == "model" ? path.parent_path().filename().string() : path.stem().string());
  line.set("path", model_path);
  try {
    const base::MappedFile file(model_path);
    const auto proto = model::onnx::parse_model(file.text());
    std::set<std::string> ops, kinds;
    collect_ops(proto.graph.node, ops);
    for (const auto& f : proto.functions) collect_ops(f.node, ops);
    collect_kinds(proto.graph.input, kinds);
    collect_kinds(proto.graph.output, kinds);
    for (const auto& id : proto.opset_import) {
      if (id.domain.empty() || id.domain == "ai.onnx") line.set("opset", id.version);
    }
    line.set("ops", list(ops));
    line.set("value_kinds", list(kinds));
  } catch (const base::Error&) {
    line.set("ops", Json::array());  // run_case reports what is wrong with the file
  }
  return line;
}

Json run_case(const std::string& model_path, const std::string& device) {
  Json line = describe_case(model_path);
  Place place{device, ""};
  try {
    const std::string note = run_model(model_path, place);
    line.set("status", "pass");
    if (!note.empty()) line.set("reason", note);
    if (device != "cpu") line.set("host", place.host);
  } catch (const base::Error& e) {
    line.set("status", e.code() == base::ErrorCode::unsupported ? "refused" : "fail");
    line.set("reason", base::concat(to_string(e.code()), ": ", e.what()).substr(0, 600));
  } catch (const std::exception& e) {
    line.set("status", "fail");
    line.set("reason", base::concat("unexpected exception: ", e.what()));
  }
  return line;
}

}  // namespace trireme::tests
