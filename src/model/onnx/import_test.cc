// Tests ONNX import: real files keep their meaning, broken bytes give clear errors, and the work for
// functions and bodies is bounded.
#include "model/onnx/import.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <protozero/pbf_writer.hpp>
#include <random>

#include "base/files/file.h"
#include "model/onnx/tensor_proto.h"
#include "tests/test_data.h"

namespace trireme::model::onnx {
namespace {

using protozero::pbf_writer;

/// Encodes messages field by field; other tests check the importer's field numbers against real files.
std::string message(const std::function<void(pbf_writer&)>& fill) {
  std::string bytes;
  pbf_writer w(bytes);
  fill(w);
  return bytes;
}

std::string value_info(const std::string& name, int32_t elem, std::vector<int64_t> dims) {
  const std::string shape = message([&](pbf_writer& w) {
    for (int64_t d : dims) w.add_message(1, message([&](pbf_writer& dim) { dim.add_int64(1, d); }));
  });
  const std::string tensor_type =
      message([&](pbf_writer& w) { w.add_int32(1, elem), w.add_message(2, shape); });
  const std::string type = message([&](pbf_writer& w) { w.add_message(1, tensor_type); });
  return message([&](pbf_writer& w) { w.add_string(1, name), w.add_message(2, type); });
}

std::string node(const std::string& op, const std::vector<std::string>& in,
                 const std::vector<std::string>& out, const std::string& domain = "") {
  return message([&](pbf_writer& w) {
    for (const auto& name : in) w.add_string(1, name);
    for (const auto& name : out) w.add_string(2, name);
    w.add_string(4, op);
    if (!domain.empty()) w.add_string(7, domain);
  });
}

std::string float_tensor(const std::string& name, std::vector<float> values) {
  return message([&](pbf_writer& w) {
    const std::vector<int64_t> dims{static_cast<int64_t>(values.size())};
    w.add_packed_int64(1, dims.begin(), dims.end());
    w.add_int32(2, 1);
    w.add_string(8, name);
    w.add_packed_float(4, values.begin(), values.end());
  });
}

struct Parts {
  std::vector<std::string> nodes, initializers, functions;
  std::string input = value_info("x", 1, {2}), output = value_info("y", 1, {2});
  int64_t opset = 13;
  std::vector<std::string> more_inputs = {};
  int64_t ir_version = 8;
};

std::string model(const Parts& parts) {
  const std::string graph = message([&](pbf_writer& w) {
    for (const auto& n : parts.nodes) w.add_message(1, n);
    w.add_string(2, "g");
    for (const auto& t : parts.initializers) w.add_message(5, t);
    w.add_message(11, parts.input);
    for (const auto& info : parts.more_inputs) w.add_message(11, info);
    w.add_message(12, parts.output);
  });
  const auto opset = [](const std::string& domain, int64_t version) {
    return message([&](pbf_writer& w) { w.add_string(1, domain), w.add_int64(2, version); });
  };
  return message([&](pbf_writer& w) {
    w.add_int64(1, parts.ir_version);
    w.add_message(8, opset("", parts.opset));
    w.add_message(8, opset("my", 1));
    w.add_message(7, graph);
    for (const auto& f : parts.functions) w.add_message(25, f);
  });
}

Model import_parts(const Parts& parts, const LoadOptions& options = {},
                   const std::vector<std::string>& fed = {}) {
  const auto owner = std::make_shared<std::string>(model(parts));
  return import_onnx(*owner, owner, "", options, fed);
}

std::string refusal(const Parts& parts, base::ErrorCode code, const LoadOptions& options = {}) {
  try {
    import_parts(parts, options);
  } catch (const base::Error& e) {
    EXPECT_EQ(e.code(), code) << e.what();
    return e.message();
  }
  ADD_FAILURE() << "was accepted";
  return "";
}

TEST(OnnxImport, ReadsGraph) {
  const Model m = import_parts({.nodes = {node("Identity", {"x"}, {"h"}), node("Identity", {"h"}, {"y"})}});
  EXPECT_EQ(m.name, "g");
  EXPECT_EQ(m.opset, 13);
  EXPECT_EQ(m.graph.nodes().size(), 2u);
  EXPECT_EQ(m.graph.type(m.graph.outputs()[0]).to_string(), "f32[2]");
}

TEST(OnnxImport, KeepsDeclaredShapesWhereTheRankIsNotKnown) {
  const auto declared = [](std::vector<int64_t> extents_of_x, const std::string& output) {
    return import_parts({.nodes = {node("Reshape", {"x", "x"}, {"y"})},
                         .input = value_info("x", 7, std::move(extents_of_x)),
                         .output = output})
        .declared_outputs;
  };
  const auto kept = declared({-1}, value_info("y", 7, {-1, 3}));
  ASSERT_EQ(kept.size(), 1u);
  EXPECT_EQ(kept[0].first, "y");
  ASSERT_EQ(kept[0].second.rank(), 2u);
  EXPECT_EQ(kept[0].second[1], tensor::Dim(3));
  EXPECT_TRUE(declared({2}, value_info("y", 7, {-1, 3})).empty());
  EXPECT_TRUE(declared({-1}, message([](pbf_writer& w) { w.add_string(1, "y"); })).empty());
}

TEST(OnnxImport, InitializersBecomeParams) {
  const Model m =
      import_parts({.nodes = {node("Identity", {"w"}, {"y"})}, .initializers = {float_tensor("w", {3, 4})}});
  const ir::Node& identity = m.graph.nodes()[0];
  EXPECT_EQ(m.graph.value(identity.in[0]).kind, ir::ValueKind::param);
  EXPECT_EQ(m.graph.known(identity.in[0])->to_doubles(), (std::vector<double>{3, 4}));
}

std::vector<std::string> names_of_inputs(const Model& m) {
  std::vector<std::string> names;
  for (const ir::ValueId id : m.graph.inputs()) names.push_back(m.graph.value(id).name);
  return names;
}

TEST(OnnxImport, InputsWithDefaultsAreInputsWhereTheyAreFed) {
  using Names = std::vector<std::string>;
  Parts parts{.nodes = {node("Add", {"x", "w"}, {"y"})},
              .initializers = {float_tensor("w", {3, 4}), float_tensor("v", {1})},
              .input = value_info("w", 1, {2}),
              .more_inputs = {value_info("x", 1, {2})}};
  EXPECT_EQ(names_of_inputs(import_parts(parts)), Names{"x"});
  EXPECT_EQ(names_of_inputs(import_parts(parts, {}, {"w"})), (Names{"w", "x"}));  // in the file's order
  for (const char* other : {"v", "x", "z"})
    EXPECT_THROW(import_parts(parts, {}, {other}), base::Error) << other;
  const auto path = std::filesystem::temp_directory_path() / "trireme_defaults.onnx";
  const auto listed = [&] {
    base::write_file_atomic(path.string(), model(parts));
    Names names;
    for (const FileInput& input : file_inputs(path.string()))
      names.push_back(input.name + (input.has_default ? " has a default" : ""));
    return names;
  };
  EXPECT_EQ(listed(), (Names{"w has a default", "x"}));
  parts.ir_version = 3;  // lists all initializers
  EXPECT_EQ(listed(), Names{"x"});
  EXPECT_THROW(import_parts(parts, {}, {"w"}), base::Error);
  std::filesystem::remove(path);
}

std::string graph_attribute(const std::string& name, const std::string& graph) {
  return message([&](pbf_writer& w) {
    w.add_message(5, message([&](pbf_writer& a) {
                    a.add_string(1, name);
                    a.add_message(6, graph);
                    a.add_int32(20, 5);
                  }));
  });
}

std::string body(const std::vector<std::string>& nodes, const std::string& output) {
  return message([&](pbf_writer& w) {
    for (const auto& n : nodes) w.add_message(1, n);
    w.add_string(2, "body");
    w.add_message(12, message([&](pbf_writer& out) { out.add_string(1, output); }));
  });
}

TEST(OnnxImport, NodesMayStandInAnyOrder) {
  const Model m = import_parts({.nodes = {node("Add", {"s", "t"}, {"y"}), node("Neg", {"t"}, {"s"}),
                                          node("Abs", {"u"}, {"t"}), node("Relu", {"x"}, {"u"})}});
  std::vector<std::string> ops;
  for (const ir::Node& n : m.graph.nodes()) ops.emplace_back(n.op_name());
  EXPECT_EQ(ops, (std::vector<std::string>{"relu", "abs", "neg", "add"}));
  // A branch reads a value of a node that comes later, and its own nodes are not in order either.
  const std::string branch = body({node("Neg", {"b"}, {"c"}), node("Abs", {"t"}, {"b"})}, "c");
  const Model branches =
      import_parts({.nodes = {node("If", {"k"}, {"y"}) + graph_attribute("then_branch", branch) +
                                  graph_attribute("else_branch", body({node("Relu", {"x"}, {"r"})}, "r")),
                              node("Exp", {"x"}, {"t"}), node("Greater", {"h", "z"}, {"k"}),
                              node("Sub", {"z", "z"}, {"h"})},
                    .initializers = {},
                    .more_inputs = {value_info("z", 1, {})}});
  EXPECT_EQ(branches.graph.nodes().back().op_name(), "if");
  // A chain from its end: no recursion over so many nodes, and no search for each.
  Parts chain;
  constexpr int kLength = 50000;
  for (int i = kLength; i > 0; --i)
    chain.nodes.push_back(node("Neg", {i == 1 ? "x" : "v" + std::to_string(i - 1)},
                               {i == kLength ? "y" : "v" + std::to_string(i)}));
  EXPECT_EQ(import_parts(chain).graph.nodes().size(), size_t{kLength});
}

TEST(OnnxImport, NegativeExtentsAreUnknown) {
  const Model m =
      import_parts({.nodes = {node("Identity", {"x"}, {"y"})}, .input = value_info("x", 1, {-1, 3, -5})});
  const tensor::Shape& shape = m.graph.type(m.graph.inputs()[0]).shape;
  ASSERT_EQ(shape.rank(), 3u);
  EXPECT_TRUE(shape[0].is_unknown());
  EXPECT_EQ(shape[1], tensor::Dim(3));
  EXPECT_TRUE(shape[2].is_unknown());
}

TEST(OnnxImport, SplitsIntoAsManyPiecesAsTheFileLists) {
  for (const int64_t opset : {7, 13, 17}) {
    const Model m = import_parts(
        {.nodes = {node("Split", {"x"}, {"y", "z", ""})}, .input = value_info("x", 1, {6}), .opset = opset});
    EXPECT_EQ(m.graph.type(m.graph.outputs()[0]).to_string(), "f32[2]") << opset;
  }
}

/// The operands at the leaves of a chain of nodes of `op`, from the left; each node may take what its op
/// takes.
std::vector<ir::ValueId> folded_operands(const ir::Graph& g, ir::ValueId end, const std::string& op) {
  for (const ir::Node& n : g.nodes()) {
    if (n.out[0] != end || n.op->schema.name != op) continue;
    EXPECT_LE(n.in.size(), n.op->schema.max_in);
    std::vector<ir::ValueId> all = folded_operands(g, n.in[0], op);
    all.insert(all.end(), n.in.begin() + 1, n.in.end());
    return all;
  }
  return {end};
}

TEST(OnnxImport, FoldsTakeAnyNumberOfOperands) {
  const std::pair<std::string, std::string> folds[] = {
      {"Sum", "sum"}, {"Max", "max"}, {"Min", "min"}, {"Mean", "sum"}};
  for (const auto& [fold, op] : folds) {
    for (const size_t count : {65, 127, 128, 1000}) {
      Parts parts;
      std::vector<std::string> names{"x"};
      for (size_t i = 1; i < count; ++i) {
        names.push_back("x" + std::to_string(i));
        parts.nodes.push_back(node("Neg", {names[i - 1]}, {names[i]}));
      }
      parts.nodes.push_back(node(fold, names, {"y"}));
      const ir::Graph g = import_parts(parts).graph;
      ir::ValueId end = g.outputs()[0];
      if (fold == "Mean") {
        const ir::Node& div = g.nodes().back();
        ASSERT_EQ(div.op->schema.name, "div");
        EXPECT_EQ(g.known(div.in[1])->to_doubles(), std::vector<double>{static_cast<double>(count)});
        end = div.in[0];
      }
      std::vector<ir::ValueId> expected{g.inputs()[0]};
      for (const ir::Node& n : g.nodes()) {
        if (n.op->schema.name == "neg") expected.push_back(n.out[0]);
      }
      ASSERT_EQ(expected.size(), count);
      EXPECT_EQ(folded_operands(g, end, op), expected) << fold << " of " << count;
    }
  }
}

TEST(OnnxImport, NamesWhatItRefuses) {
  using enum base::ErrorCode;
  EXPECT_NE(
      refusal({.nodes = {node("Identitty", {"x"}, {"y"})}}, unsupported).find("nearest known: 'Identity'"),
      std::string::npos);
  EXPECT_NE(refusal({.nodes = {node("Foo", {"x"}, {"y"}, "com.example")}}, unsupported).find("com.example"),
            std::string::npos);
  EXPECT_NE(refusal({.nodes = {}, .input = value_info("x", 8, {2})}, unsupported).find("string"),
            std::string::npos);
  EXPECT_NE(refusal({.nodes = {}, .opset = 1000}, unsupported).find("opset 1000"), std::string::npos);
  const std::string sequence = message([](pbf_writer& w) {
    w.add_string(1, "x");
    w.add_message(2, message([](pbf_writer& type) { type.add_message(4, std::string()); }));
  });
  EXPECT_NE(refusal({.nodes = {}, .input = sequence}, unsupported).find("sequence"), std::string::npos);
}

TEST(OnnxImport, NodesWithoutSeedDrawNumbersOfTheirOwn) {
  const std::string seeded = node("RandomNormalLike", {"x"}, {"c"}) + message([](pbf_writer& w) {
                               w.add_message(5, message([](pbf_writer& a) {
                                               a.add_string(1, "seed");
                                               a.add_float(2, 3);
                                               a.add_int32(20, 1);
                                             }));
                             });
  const Parts parts{.nodes = {node("RandomNormalLike", {"x"}, {"a"}), node("RandomNormalLike", {"x"}, {"b"}),
                              seeded, node("Sum", {"a", "b", "c"}, {"y"})}};
  const auto seeds = [&] {
    std::vector<double> found;
    const Model model = import_parts(parts);
    for (const ir::Node& n : model.graph.nodes()) {
      if (n.op_name() == "random_normal_like") found.push_back(n.attrs.get_float("seed", 0));
    }
    return found;
  };
  const std::vector<double> found = seeds();
  ASSERT_EQ(found.size(), 3u);
  EXPECT_NE(found[0], found[1]);
  EXPECT_EQ(found[2], 3);
  EXPECT_EQ(seeds(), found) << "of the same file read again";
}

std::string cast(const std::string& in, const std::string& out, int64_t to) {
  return node("Cast", {in}, {out}) + message([&](pbf_writer& w) {
           w.add_message(5, message([&](pbf_writer& a) {
                           a.add_string(1, "to");
                           a.add_int64(3, to);
                           a.add_int32(20, 2);
                         }));
         });
}

TEST(OnnxImport, CastsAtTheBorderBecomeTheCallers) {
  const LoadOptions strings{.takes_strings = true};
  const Parts parts{.nodes = {cast("x", "n", 6), node("Neg", {"n"}, {"m"}), cast("m", "y", 8)},
                    .input = value_info("x", 8, {2}),
                    .output = value_info("y", 8, {2})};
  const Model m = import_parts(parts, strings);
  ASSERT_EQ(m.string_inputs.size(), 1u);
  EXPECT_EQ(m.string_inputs[0].name, "x");
  EXPECT_EQ(m.string_inputs[0].form, StringPort::Form::number);
  EXPECT_EQ(m.graph.type(m.graph.inputs()[0]).to_string(), "i32[2]");
  ASSERT_EQ(m.string_outputs.size(), 1u);
  EXPECT_EQ(m.string_outputs[0].form, StringPort::Form::number);
  EXPECT_EQ(m.graph.type(m.graph.outputs()[0]).to_string(), "i32[2]");
  refusal(parts, base::ErrorCode::unsupported);  // without string conversion, the model is refused
}

TEST(OnnxImport, MovedStringsAreHandles) {
  const Model m = import_parts({.nodes = {node("Identity", {"x"}, {"h"}), node("Transpose", {"h"}, {"y"})},
                                .input = value_info("x", 8, {2}),
                                .output = value_info("y", 8, {2})},
                               {.takes_strings = true});
  EXPECT_EQ(m.string_inputs.at(0).form, StringPort::Form::handle);
  EXPECT_EQ(m.string_outputs.at(0).form, StringPort::Form::handle);
  EXPECT_EQ(m.graph.type(m.graph.outputs()[0]).to_string(), "i64[2]");
}

TEST(OnnxImport, RefusesWhatLooksIntoStrings) {
  const LoadOptions strings{.takes_strings = true};
  using enum base::ErrorCode;
  const auto with = [](std::vector<std::string> nodes, int32_t output) {
    return Parts{
        .nodes = std::move(nodes), .input = value_info("x", 8, {2}), .output = value_info("y", output, {2})};
  };
  const auto says = [&](const Parts& parts, const char* fragment, base::ErrorCode code = unsupported) {
    EXPECT_NE(refusal(parts, code, strings).find(fragment), std::string::npos) << fragment;
  };
  says(with({node("Neg", {"x"}, {"y"})}, 8), "operator Neg on strings");
  says(with({node("StringConcat", {"x", "x"}, {"y"})}, 8), "operator StringConcat on strings");
  says(with({node("Identity", {"x"}, {"h"}), cast("h", "y", 6)}, 6), "also moves about");
  says(with({cast("x", "a", 6), cast("a", "s", 8), node("Identity", {"s"}, {"y"})}, 8), "that a Cast made");
  says(with({cast("x", "y", 8)}, 8), "string to string");
  says(with({node("Identity", {"x"}, {"y"})}, 1), "its type says otherwise", invalid_argument);
}

TEST(OnnxImport, RefusesBrokenGraphs) {
  using enum base::ErrorCode;
  // A cycle is detected as a node that reads a later value.
  EXPECT_NE(
      refusal({.nodes = {node("Identity", {"y"}, {"h"}), node("Identity", {"h"}, {"y"})}}, invalid_argument)
          .find("is read before"),
      std::string::npos);
  refusal({.nodes = {node("Identity", {"x"}, {"y"}), node("Identity", {"x"}, {"y"})}}, invalid_argument);
  refusal({.nodes = {node("Identity", {"x"}, {"z"})}}, invalid_argument);
  refusal({.nodes = {node("Identity", {}, {"y"})}}, invalid_argument);
  refusal({.nodes = {}, .input = value_info("x", 1, {1ll << 40, 1ll << 40})}, invalid_argument);
  // An extent that an operand has is a rank here: no list of so many dimensions may be made.
  for (const char* op : {"Reshape", "Expand", "Unsqueeze", "ConstantOfShape"}) {
    const std::string one =
        op == std::string("ConstantOfShape") ? node(op, {"x"}, {"y"}) : node(op, {"x", "x"}, {"y"});
    EXPECT_NE(refusal({.nodes = {one}, .input = value_info("x", 7, {1ll << 40})}, invalid_argument)
                  .find("dimensions"),
              std::string::npos)
        << op;
  }
}

std::string function(const std::string& name, const std::vector<std::string>& nodes) {
  return message([&](pbf_writer& w) {
    w.add_string(1, name);
    w.add_string(4, "a");
    w.add_string(5, "b");
    for (const auto& n : nodes) w.add_message(7, n);
    w.add_string(10, "my");
  });
}

TEST(OnnxImport, InlinesFunctions) {
  const Model m = import_parts(
      {.nodes = {node("F", {"x"}, {"h"}, "my"), node("F", {"h"}, {"y"}, "my")},
       .functions = {function("F", {node("Identity", {"a"}, {"t"}), node("Identity", {"t"}, {"b"})})}});
  EXPECT_EQ(m.graph.nodes().size(), 4u);
}

TEST(OnnxImport, BoundsFunctionGrowth) {
  using enum base::ErrorCode;
  refusal({.nodes = {node("F", {"x"}, {"y"}, "my")},
           .functions = {function("F", {node("F", {"a"}, {"b"}, "my")})}},
          invalid_argument);
  Parts bomb{.nodes = {node("F0", {"x"}, {"y"}, "my")}};  // each function calls the next twice: 2^30 nodes
  for (int i = 0; i < 30; ++i) {
    const std::string next = "F" + std::to_string(i + 1);
    bomb.functions.push_back(
        function("F" + std::to_string(i), {node(next, {"a"}, {"t"}, "my"), node(next, {"t"}, {"b"}, "my")}));
  }
  bomb.functions.push_back(function("F30", {node("Identity", {"a"}, {"b"})}));
  EXPECT_NE(refusal(bomb, invalid_argument).find("nodes"), std::string::npos);
  // A file of few nodes may not make a million, nor copy a long list of attributes a thousand times.
  bomb.functions.resize(17);
  bomb.functions.push_back(function("F17", {node("Identity", {"a"}, {"b"})}));
  EXPECT_NE(refusal(bomb, invalid_argument).find("more than 6"), std::string::npos);
  bomb.functions.erase(bomb.functions.begin(), bomb.functions.begin() + 7);
  bomb.nodes = {node("F7", {"x"}, {"y"}, "my")};
  EXPECT_EQ(import_parts(bomb).graph.nodes().size(), 1024u);
  const std::string list = message([](pbf_writer& w) {
    w.add_string(1, "value_ints");
    const std::vector<int64_t> many(10000, 1);
    w.add_packed_int64(8, many.begin(), many.end());
    w.add_int32(20, 7);
  });
  std::string constant = node("Constant", {}, {"k"});
  pbf_writer(constant).add_message(5, list);
  bomb.functions.back() = function("F17", {constant, node("Identity", {"a"}, {"b"})});
  EXPECT_NE(refusal(bomb, invalid_argument).find("more than 6"), std::string::npos);
}

/// Imports mutated copies of `good`; returns how many were refused. Every refusal must be a clear error.
int import_mutated(const std::string& good, int rounds, uint32_t seed) {
  std::mt19937 random(seed);
  int refused = 0;
  for (int round = 0; round < rounds; ++round) {
    auto bytes = std::make_shared<std::string>(good);
    const size_t flips = 1 + random() % 3;
    for (size_t i = 0; i < flips; ++i) (*bytes)[random() % bytes->size()] = static_cast<char>(random());
    if (round % 4 == 0) bytes->resize(random() % bytes->size());
    try {
      import_onnx(*bytes, bytes, "");
    } catch (const base::Error& e) {
      EXPECT_NE(e.code(), base::ErrorCode::internal)
          << "seed " << seed << " round " << round << ": " << e.what();
      ++refused;
    }
  }
  return refused;
}

TEST(OnnxImport, SurvivesMutation) {
  const std::string good = model({.nodes = {node("F", {"x"}, {"h"}, "my"), node("Identity", {"w"}, {"y"})},
                                  .initializers = {float_tensor("w", {3, 4})},
                                  .functions = {function("F", {node("Identity", {"a"}, {"b"})})}});
  EXPECT_GT(import_mutated(good, 20000, 7), 5000);
  uint32_t seed = 100;
  for (const auto& entry : std::filesystem::directory_iterator(tests::source_dir() / "tests/fuzz/onnx")) {
    EXPECT_GT(import_mutated(base::read_file(entry.path().string()), 2000, seed++), 200) << entry.path();
  }
}

TEST(OnnxImport, ReadsTheSeeds) {
  for (const auto& entry : std::filesystem::directory_iterator(tests::source_dir() / "tests/fuzz/onnx")) {
    if (entry.path().stem() == "external") continue;
    const Model m = load_onnx(entry.path().string());
    EXPECT_EQ(m.graph.outputs().size(), 1u) << entry.path();
    ir::verify(m.graph);
  }
}

// Tensors that share bytes of a file would let a small file expand when they are copied: they must be the
// same tensor, or not overlap.
TEST(OnnxImport, ExternalTensorsOfOneFileDoNotOverlap) {
  const auto dir = std::filesystem::temp_directory_path() / "trireme_external_overlap";
  std::filesystem::create_directories(dir);
  base::write_file_atomic((dir / "w.bin").string(), std::string("\0\0\0\0\0\0\0\x80\x3f\0\0\0\x40", 13));
  TensorSource source{.owner = nullptr, .directory = dir.string()};
  const auto read = [&](const char* offset, tensor::Dims dims) {
    TensorProto proto;
    proto.dims = std::move(dims);
    proto.data_type = 1;
    proto.is_external = true;
    proto.external_data = {{"location", "w.bin"}, {"offset", offset}};
    return make_tensor(proto, source);
  };
  const tensor::Tensor two = read("5", {2});  // not aligned, so copied
  EXPECT_EQ(two.to_doubles(), (std::vector<double>{1, 2}));
  EXPECT_EQ(read("5", {2, 1}).raw(), two.raw());
  EXPECT_EQ(read("1", {1}).to_doubles(), std::vector<double>{0});
  EXPECT_THROW(read("4", {2}), base::Error);
  EXPECT_THROW(read("6", {1}), base::Error);
  std::filesystem::remove_all(dir);
}

TEST(OnnxImport, SparseTensorsAreAsDenseAsTheirValuesPayFor) {
  TensorSource source;
  const auto dense = [&](int64_t extent) {
    SparseTensorProto proto;
    proto.dims = {extent};
    for (TensorProto* part : {&proto.values, &proto.indices}) part->dims = {1};
    const std::string_view value("\0\0\x80\x3f", 4), index("\2\0\0\0\0\0\0\0", 8);
    proto.values.data_type = 1, proto.values.raw_data = value;
    proto.indices.data_type = 7, proto.indices.raw_data = index;
    return make_dense(proto, source);
  };
  EXPECT_EQ(dense(4).to_doubles(), (std::vector<double>{0, 0, 1, 0}));
  EXPECT_EQ(dense(1 << 20).elements(), 1 << 20);
  EXPECT_THROW(dense(1 << 26), base::Error);
  int made = 0;  // many small tensors together share one limit
  try {
    for (; made < 1000; ++made) dense(1 << 20);
  } catch (const base::Error& e) {
    EXPECT_NE(e.message().find("too large when dense"), std::string::npos);
  }
  EXPECT_LT(made, 10);
}

TEST(OnnxImport, ReadsExternalDataInsideTheDirectoryOnly) {
  const auto dir = std::filesystem::temp_directory_path() / "trireme_external_data";
  std::filesystem::create_directories(dir);
  base::write_file_atomic((dir / "w.bin").string(), std::string("\0\0\0\0\0\0\x80\x3f\0\0\0\x40", 12));
  const auto load = [&](const std::string& location, const std::string& offset, const std::string& length) {
    const auto pair = [](const char* key, const std::string& text) {
      return message([&](pbf_writer& w) { w.add_string(1, key), w.add_string(2, text); });
    };
    const std::string tensor = message([&](pbf_writer& w) {
      w.add_int64(1, 2), w.add_int32(2, 1), w.add_string(8, "w"), w.add_int32(14, 1);
      w.add_message(13, pair("location", location)), w.add_message(13, pair("offset", offset));
      w.add_message(13, pair("length", length));
    });
    const auto owner = std::make_shared<std::string>(
        model({.nodes = {node("Identity", {"w"}, {"y"})}, .initializers = {tensor}}));
    const Model m = import_onnx(*owner, owner, dir.string());
    return m.graph.known(m.graph.nodes()[0].in[0])->to_doubles();
  };
  EXPECT_EQ(load("w.bin", "4", "8"), (std::vector<double>{1, 2}));
  EXPECT_THROW(load("../trireme_external_data/w.bin", "4", "8"), base::Error);
  EXPECT_THROW(load("/etc/passwd", "0", "8"), base::Error);
  std::filesystem::remove(dir / "link");
  std::filesystem::create_symlink("/etc/passwd", dir / "link");
  EXPECT_THROW(load("link", "0", "8"), base::Error);
  EXPECT_THROW(load("w.bin", "8", "8"), base::Error);
  EXPECT_THROW(load("w.bin", "18446744073709551615", "8"), base::Error);
  EXPECT_THROW(load("w.bin", "4", "4"), base::Error);
  EXPECT_THROW(load("w.bin", "-4", "8"), base::Error);
  std::filesystem::remove_all(dir);
}

}  // namespace
}  // namespace trireme::model::onnx
