// Tests config.pbtxt: the text format, honoured fields, refusals by name, and completion from a graph.
#include "serve/config/model_config.h"

#include <gtest/gtest.h>

#include "ops/table.h"
#include "serve/config/pbtxt.h"
#include "serve/config/test_refusal.h"

namespace trireme::serve {
namespace {

TEST(Pbtxt, ReadsEveryFormOfTheText) {
  const auto fields = parse_pbtxt(R"(
      a: 1, b: "x" 'y' "\x41\101\n"; c { d: -0x10 } c: { d: TYPE } e: [ 1, 2,3 ] f [ { g: true },
      { g: f } ] # end
      h < i: 017 > j: [])");
  ASSERT_EQ(fields.size(), 10u);
  EXPECT_EQ(fields[0].as_int(), 1);
  EXPECT_EQ(fields[1].as_string(), "xyAA\n");
  EXPECT_EQ(fields[2].as_message().at(0).as_int(), -16);
  EXPECT_EQ(fields[3].as_message().at(0).as_word(), "TYPE");
  EXPECT_EQ(fields[6].as_int(), 3);
  EXPECT_TRUE(fields[7].as_message().at(0).as_bool());
  EXPECT_FALSE(fields[8].as_message().at(0).as_bool());
  EXPECT_EQ(fields[9].as_message().at(0).as_int(), 15);
  EXPECT_EQ(fields[9].line, 4);
  EXPECT_EQ(parse_pbtxt("a:\v'\\u00e4\\U0001F600\\ud83d\\ude00'\f").at(0).as_string(),
            "\u00e4\U0001F600\U0001F600");
  EXPECT_EQ(parse_pbtxt("\xEF\xBB\xBF"
                        "a: - 7")
                .at(0)
                .as_int(),
            -7);
}

TEST(Pbtxt, RefusesWhatIsMalformed) {
  std::string deep;
  for (int i = 0; i < 1000; ++i) deep += "a{";
  for (const std::string& text :
       {std::string("a"), std::string("a:"), std::string("a { b: 1"), std::string("a: 1 }"),
        std::string("a: \"x"), std::string("a: [1"), std::string("a 1"), std::string(": 1"),
        std::string("a: '\\u00e'"), std::string("a: '\\U00110000'"), std::string("a: '\\ud83dx'"),
        std::string("a: '\\ude00'"), std::string("a: '\\xff'"), std::string("a: \"\\q\""),
        std::string("a: 'x\n'"), std::string("a: 1\0", 5), std::string("a: [1,]"), deep}) {
    EXPECT_THROW(parse_pbtxt(text), base::Error) << text.substr(0, 20);
  }
  EXPECT_THROW(parse_pbtxt("a: 99999999999999999999").at(0).as_int(), base::Error);
  EXPECT_THROW(parse_pbtxt("a: \"1\"").at(0).as_int(), base::Error);
  EXPECT_THROW(parse_pbtxt("a: 1x").at(0).as_int(), base::Error);
  EXPECT_THROW(parse_pbtxt("a: maybe").at(0).as_bool(), base::Error);
}

/// Steps, tensors and controls are compared pairwise, and a load request may contain a configuration.
TEST(Pbtxt, RefusesMoreFieldsThanAnyModelHas) {
  const auto refusal = [](const std::string& text) -> std::string {
    try {
      text.front() == '{' ? parse_model_config_json(text) : parse_model_config(text);
    } catch (const base::Error& e) {
      return e.message();
    }
    return "";
  };
  std::string fields, list = "max_batch_size: 1 dynamic_batching { preferred_batch_size: [1",
                      json = "{\"input\":[{}";
  for (size_t i = 0; i <= kMostConfigFields; ++i) {
    fields += "input { }\n";
    list += ",1";
    json += ",{}";
  }
  for (const std::string& text : {fields, list + "] }", json + "]}"})
    EXPECT_NE(refusal(text).find("limit of 4096"), std::string::npos) << refusal(text);
  const std::string blanks(kMostConfigBytes, ' ');
  EXPECT_NE(refusal("#" + blanks).find("the limit is"), std::string::npos);
  EXPECT_NE(refusal("{" + blanks + "}").find("too large"), std::string::npos);
}

TEST(ModelConfig, ReadsWhatIsHonoured) {
  const ModelConfig c = parse_model_config(R"(
      name: "m" backend: "onnxruntime" max_batch_size: 16
      input { name: "x" data_type: TYPE_FP32 dims: [ 3, -1 ] }
      output { name: "y" data_type: TYPE_STRING dims: 1 }
      version_policy { specific { versions: [ 2, 4 ] } }
      dynamic_batching { preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 100
        priority_levels: 3 default_priority_level: 2
        priority_queue_policy { key: 2 value { timeout_action: DELAY max_queue_size: 3 } }
        default_queue_policy { default_timeout_microseconds: 9 allow_timeout_override: false
          max_queue_size: 5 } }
      instance_group [ { count: 2 }, { count: 1 kind: KIND_CPU } ]
      parameters { key: "k" value { string_value: "v" } })");
  EXPECT_EQ(c.max_batch_size, 16);
  EXPECT_EQ(c.inputs.at(0).dims, (tensor::Dims{3, -1}));
  EXPECT_FALSE(c.outputs.at(0).type.has_value());
  EXPECT_EQ(c.versions.versions, (std::vector<int64_t>{2, 4}));
  EXPECT_EQ(c.preferred_batch_size, (std::vector<int64_t>{4, 8}));
  EXPECT_EQ(c.max_queue_delay_us, 100);
  EXPECT_EQ(c.queue.max_queue_size, 5);
  EXPECT_EQ(c.queue.allow_timeout_override, std::optional<bool>(false));
  EXPECT_EQ(c.instances, 3);
  EXPECT_EQ(config_json(c).at("dynamic_batching").at("priority_levels").as_int(), 3);
}

TEST(ModelConfig, RefusesOtherFieldsByName) {
  for (const char* field : {"model_repository_agents", "batch_input", "nonsense"}) {
    const std::string text = refusal("name: \"m\"\n" + std::string(field) + " { a: 1 }");
    EXPECT_NE(text.find(field), std::string::npos) << text;
    EXPECT_NE(text.find("line 2"), std::string::npos) << text;
  }
  EXPECT_NE(
      refusal("input { name: \"x\" data_type: TYPE_FP32 dims: 4 reshape { shape: [2, 3] } }").find("reshape"),
      std::string::npos);
  EXPECT_NE(refusal("instance_group { gpus: 1 }").find("without kind KIND_GPU"), std::string::npos);
  EXPECT_NE(refusal("max_batch_size: -1").find("negative"), std::string::npos);
  EXPECT_NE(refusal("max_batch_size: 0 dynamic_batching { }").find("max_batch_size"), std::string::npos);
  EXPECT_NE(refusal("max_batch_size: 4 dynamic_batching { preferred_batch_size: 5 }").find("5"),
            std::string::npos);
  EXPECT_NE(refusal("input { name: \"x\" data_type: TYPE_FP32 dims: 0 }").find("dims"), std::string::npos);
  EXPECT_NE(refusal("input { name: \"x\" data_type: FP32 dims: 1 }").find("data_type"), std::string::npos);
}

TEST(ModelConfig, FieldsThatAreNotHonouredMayRepeatTheirDefault) {
  const auto told = [](const std::string& value) {
    return refusal("sequence_batching { direct { minimum_slot_utilization: " + value + " } }");
  };
  for (const char* zero : {"0", "0.0", "0f", "0.F", "-0.0", "0e3", "0x0", "00"})
    EXPECT_EQ(told(zero).find("minimum_slot_utilization"), std::string::npos) << told(zero);
  for (const char* other : {"0.5", "1e-9f", "f0", "0x1", "0x0f"})
    EXPECT_NE(told(other).find("minimum_slot_utilization"), std::string::npos) << told(other);
}

/// A scraper refuses all metrics if one series has a label twice.
TEST(ModelConfig, TagsAreLabelsThatNoSeriesHas) {
  const auto tag = [](const char* key) {
    return refusal(base::concat("metric_tags { key: \"", key, "\" value: \"a\" }"));
  };
  EXPECT_EQ(tag("team"), "accepted");
  for (const char* key : {"", "1a", "a-b", "model", "version", "reason", "le", "instance", "quantile"})
    EXPECT_NE(tag(key).find("no label"), std::string::npos) << key;
  const ModelConfig c = parse_model_config(
      "metric_tags { key: \"t\" value: \"a\" } metric_tags { key: \"u\" value: \"b\" } "
      "metric_tags { key: \"t\" value: \"c\" }");
  using Tags = std::vector<std::pair<std::string, std::string>>;
  EXPECT_EQ(c.metric_tags, (Tags{{"u", "b"}, {"t", "c"}}));
}

TEST(ModelConfig, StepsGiveEachInputOnce) {
  const auto step = [](const char* second) {
    return refusal(base::concat(
        "platform: \"ensemble\" max_batch_size: 0 ensemble_scheduling { step { model_name: \"m\" "
        "input_map { key: \"x\" value: \"A\" } input_map { key: \"",
        second, "\" value: \"B\" } output_map { key: \"y\" value: \"C\" } } }"));
  };
  EXPECT_EQ(step("z"), "accepted");
  EXPECT_NE(step("x").find("gives input 'x' twice"), std::string::npos) << step("x");
}

TEST(ModelConfig, StepsThatNoOutputDependsOnAreKnown) {
  const EnsembleConfig chain{
      .steps = {{.model = "c", .inputs = {{"i", "q"}}, .outputs = {{"o", "y"}}},
                {.model = "b", .inputs = {{"i", "p"}}, .outputs = {{"o", "unread"}}},
                {.model = "a", .inputs = {{"i", "x"}}, .outputs = {{"o", "p"}, {"u", "q"}}},
                {.model = "d", .inputs = {{"i", "unread"}}, .outputs = {{"o", "z"}}}}};
  EXPECT_EQ(unread_steps(chain, {"y"}), (std::vector<bool>{false, true, false, true}));
  EXPECT_EQ(unread_steps(chain, {"z", "y"}), (std::vector<bool>{false, false, false, false}));
}

ir::Graph relu(std::initializer_list<tensor::Dim> dims) {
  ir::Graph g;
  const ir::ValueId x = g.add_input("x", {tensor::DType::f32, tensor::Shape(dims)});
  g.add_output(g.add1(ops::table().need("relu"), {x}), "y");
  return g;
}

TEST(ModelConfig, InfersBatchingFromTheGraph) {
  ModelConfig open;
  complete_config(open, relu({tensor::Dim::symbol("n"), 4}), 32);
  EXPECT_EQ(open.max_batch_size, 32);
  EXPECT_EQ(open.inputs.at(0).dims, (tensor::Dims{4}));
  ModelConfig fixed;
  complete_config(fixed, relu({2, 4}), 32);
  EXPECT_EQ(fixed.max_batch_size, 0);
  EXPECT_EQ(fixed.inputs.at(0).dims, (tensor::Dims{2, 4}));
}

TEST(ModelConfig, ChecksTheConfigAgainstTheGraph) {
  const auto complete = [](const char* text, const ir::Graph& graph) {
    ModelConfig c = parse_model_config(text);
    complete_config(c, graph, 32);
    return c;
  };
  const ir::Graph open = relu({tensor::Dim::symbol("n"), tensor::Dim::symbol("m")}), fixed = relu({2, 4});
  EXPECT_THROW(complete("max_batch_size: 8", fixed), base::Error);
  EXPECT_THROW(complete("input { name: \"z\" data_type: TYPE_FP32 dims: [2,4] }", fixed), base::Error);
  EXPECT_THROW(complete("input { name: \"x\" data_type: TYPE_INT8 dims: [2,4] }", fixed), base::Error);
  EXPECT_THROW(complete("input { name: \"x\" data_type: TYPE_FP32 dims: [2,5] }", fixed), base::Error);
  EXPECT_THROW(complete("output { name: \"q\" data_type: TYPE_FP32 dims: [2,4] }", fixed), base::Error);
  const ModelConfig c =
      complete("max_batch_size: 8 input { name: \"x\" data_type: TYPE_FP32 dims: 7 }", open);
  EXPECT_EQ(c.inputs.at(0).dims, (tensor::Dims{7}));
  EXPECT_EQ(c.outputs.at(0).dims, (tensor::Dims{-1}));
}

TEST(ModelConfig, TakesTheDeclaredShapeOfAnOutputOfUnknownRank) {
  ir::Graph graph;
  const ir::ValueId x = graph.add_input("x", {tensor::DType::f32, tensor::Shape::unknown_rank()});
  graph.add_output(graph.add1(ops::table().need("relu"), {x}), "y");
  const auto complete = [&](const std::string& output, const DeclaredShapes& declared) {
    ModelConfig c =
        parse_model_config("max_batch_size: 8 input { name: \"x\" data_type: TYPE_FP32 dims: 4 }" + output);
    complete_config(c, graph, 32, declared);
    return c.outputs.at(0).dims;
  };
  const DeclaredShapes open{{"y", {tensor::Dim::symbol("n"), 4}}}, fixed{{"y", {2, 4}}};
  EXPECT_EQ(complete("", open), (tensor::Dims{4}));
  EXPECT_THROW(complete("", fixed), base::Error);
  EXPECT_THROW(complete("", {{"z", {tensor::Dim::symbol("n"), 4}}}), base::Error);
  // The config knows better.
  EXPECT_EQ(complete("output { name: \"y\" data_type: TYPE_FP32 dims: [3,-1] }", open),
            (tensor::Dims{3, -1}));
}

TEST(ModelConfig, GroupsOfGpusHaveInstancesOnEach) {
  const ModelConfig c = parse_model_config(
      "instance_group { count: 2 kind: KIND_GPU gpus: [ 1, 3 ] } instance_group { count: 1 kind: KIND_CPU } "
      "instance_group { kind: KIND_GPU } instance_group { kind: KIND_AUTO }");
  EXPECT_EQ(c.instances, 7);
  EXPECT_EQ(c.devices(),
            (std::vector<std::string>{"cuda:1", "cuda:1", "cuda:3", "cuda:3", "cpu", "cuda:0", ""}));
  EXPECT_EQ(c.claims().size(), 7u);
  EXPECT_EQ(parse_model_config_json(config_json(c).dump()).devices(), c.devices());
  EXPECT_NE(refusal("instance_group { count: 1000 kind: KIND_GPU gpus: [ 0, 1 ] }").find("more than 1024"),
            std::string::npos);
}

TEST(ModelConfig, ReadsInstanceGroupsAndTheirResources) {
  const ModelConfig c = parse_model_config(R"(
      max_batch_size: 4 dynamic_batching { preserve_ordering: true } default_model_filename: "net.onnx"
      instance_group { name: "a" count: 2 kind: KIND_AUTO
        rate_limiter { priority: 3
          resources [ { name: "R1" count: 4 }, { name: "R2" global: true count: 2 } ] } }
      instance_group { })");
  EXPECT_TRUE(c.preserves_order);
  EXPECT_EQ(c.instances, 3);
  const std::vector<sched::RateClaim> claims = c.claims();
  ASSERT_EQ(claims.size(), 3u);
  EXPECT_EQ(claims[1].priority, 3u);
  EXPECT_TRUE(claims[1].needs.at(1).is_global);
  EXPECT_TRUE(claims[2].needs.empty());
  const base::Json json = config_json(c);
  // The printed configuration can be read again.
  const ModelConfig again = parse_model_config_json(json.dump());
  EXPECT_EQ(again.claims().at(0).needs.at(0).count, 4);
  EXPECT_EQ(config_json(again).dump(), json.dump());
}

TEST(ModelConfig, ReshapesKeepTheirOpenExtentsInPlace) {
  const auto input = [](const char* dims, const char* shape) {
    return refusal(base::concat("input { name: \"x\" data_type: TYPE_FP32 dims: ", dims,
                                " reshape { shape: ", shape, " } }"));
  };
  EXPECT_EQ(input("[ 3, 224, 224 ]", "[ 1, 3, 224, 224 ]"), "accepted");
  EXPECT_EQ(input("[ 2, -1, 3, 4 ]", "[ 1, 2, -1, 12 ]"), "accepted");
  EXPECT_EQ(input("[ 1 ]", "[ ]"), "accepted");
  EXPECT_NE(input("[ 3, -1 ]", "[ -1, 3 ]"), "accepted");
  EXPECT_NE(input("[ 6 ]", "[ 2, 2 ]"), "accepted");
  EXPECT_NE(input("[ -1 ]", "[ -1, -1 ]"), "accepted");
}

}  // namespace
}  // namespace trireme::serve
