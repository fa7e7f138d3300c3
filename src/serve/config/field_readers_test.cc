// Tests forms of config.pbtxt and of JSON in load requests: each means what protobuf defines, and errors
// state field, value and remedy.
#include "serve/config/field_readers.h"

#include <gtest/gtest.h>

#include "ops/table.h"
#include "serve/config/test_refusal.h"

namespace trireme::serve {
namespace {

void expect_parts(const std::string& message, std::initializer_list<const char*> parts) {
  for (const char* part : parts) EXPECT_NE(message.find(part), std::string::npos) << part << "\n" << message;
}

ir::Graph copies(std::initializer_list<tensor::Shape> shapes) {
  ir::Graph g;
  int i = 0;
  for (const tensor::Shape& shape : shapes) {
    const std::string number = std::to_string(i++);
    const ir::ValueId x = g.add_input("x" + number, {tensor::DType::f32, shape});
    g.add_output(g.add1(ops::table().need("relu"), {x}), "y" + number);
  }
  return g;
}

ModelConfig completed(const char* text, const ir::Graph& graph) {
  ModelConfig c = parse_model_config(text);
  complete_config(c, graph, 32);
  return c;
}

std::string completion_error(const char* text, const ir::Graph& graph) {
  try {
    completed(text, graph);
  } catch (const base::Error& e) {
    return e.message();
  }
  return "accepted";
}

TEST(FieldReaders, EnumerationsAreNamesOrNumbers) {
  const ModelConfig c = parse_model_config(
      "max_batch_size: 4 input { name: \"x\" data_type: 11 format: 2 dims: [ 3, 2, - 1 ] } "
      "instance_group { kind: 2 } dynamic_batching { default_queue_policy { timeout_action: 1 } }");
  EXPECT_EQ(c.inputs.at(0).type, WireType(tensor::DType::f32));
  EXPECT_EQ(c.inputs.at(0).format, "FORMAT_NCHW");
  EXPECT_EQ(c.inputs.at(0).dims, (tensor::Dims{3, 2, -1}));
  EXPECT_EQ(c.groups.at(0).kind, "KIND_CPU");
  EXPECT_TRUE(c.queue.runs_late);
  expect_parts(refusal("\ninstance_group { kind: KIND_TPU }"),
               {"line 2", "'kind'", "'KIND_TPU'", "KIND_AUTO, KIND_GPU, KIND_CPU, KIND_MODEL"});
  expect_parts(refusal("input { name: \"x\" data_type: FP32 dims: 1 }"), {"'FP32'", "TYPE_FP32"});
  EXPECT_NE(refusal("input { name: \"x\" data_type: 15 dims: 1 }"), "accepted");
  EXPECT_NE(refusal("input { name: \"x\" data_type: TYPE_INVALID dims: 1 }"), "accepted");
}

TEST(FieldReaders, WhatIsThereTwiceIsNotLost) {
  expect_parts(refusal("max_batch_size: 4\nmax_batch_size: 8"), {"line 2", "'max_batch_size'", "line 1"});
  expect_parts(refusal("dynamic_batching { }\ndynamic_batching { preserve_ordering: true }"), {"line 2"});
  expect_parts(refusal("version_policy { latest { } all { } }"), {"'all' excludes 'latest'"});
  expect_parts(refusal("max_batch_size: 4 sequence_batching { direct { } oldest { } }"), {"excludes"});
  expect_parts(refusal("max_batch_size: [ 4, 8 ]"), {"twice"});
  EXPECT_EQ(refusal("input { name: \"a\" data_type: TYPE_FP32 dims: 1 } input { name: \"b\" data_type: "
                    "TYPE_FP32 dims: 1 dims: 2 } parameters { key: \"a\" } parameters { key: \"b\" }"),
            "accepted");
}

TEST(FieldReaders, TimesBeyondACenturyAreForEver) {
  for (const char* most : {"9223372036854775807", "18446744073709551615"}) {
    const std::string us = most;
    const ModelConfig c =
        parse_model_config("max_batch_size: 4 dynamic_batching { max_queue_delay_microseconds: " + us +
                           " default_queue_policy { default_timeout_microseconds: " + us + " } }");
    EXPECT_GT(*c.max_queue_delay_us * 1000, 0);
    EXPECT_GT(c.queue.default_timeout_us * 1000, int64_t{1} << 60);
    const ModelConfig s = parse_model_config(
        "max_batch_size: 4 sequence_batching { max_sequence_idle_microseconds: " + us + " }");
    EXPECT_GT(s.sequence->idle_us * 1000, int64_t{1} << 60);
  }
  // In protobuf, 0 means "not set".
  EXPECT_EQ(parse_model_config("max_batch_size: 4 sequence_batching { max_sequence_idle_microseconds: 0 }")
                .sequence->idle_us,
            1'000'000);
  EXPECT_NE(refusal("dynamic_batching { max_queue_delay_microseconds: -1 }"), "accepted");
}

TEST(FieldReaders, TellsWhatWasMeant) {
  expect_parts(refusal("dynamic_batchin { }"), {"'dynamic_batchin'", "is 'dynamic_batching' meant?"});
  expect_parts(refusal("max_queue_delay_microseconds: 5"),
               {"'dynamic_batching.max_queue_delay_microseconds'"});
  EXPECT_EQ(refusal("zzz: 5").find("meant"), std::string::npos);
  // The default of a text field is the empty text.
  EXPECT_NE(refusal("instance_group { host_policy: \"f\" }"), "accepted");
  EXPECT_EQ(refusal("instance_group { host_policy: \"\" passive: false }"), "accepted");
}

TEST(FieldReaders, JsonIsProtobufs) {
  const ModelConfig c = parse_model_config_json(
      R"({"maxBatchSize": 4, "dynamicBatching": {"maxQueueDelayMicroseconds": "100",
          "defaultQueuePolicy": {"allowTimeoutOverride": false}},
          "instanceGroup": [{"kind": 2, "count": "2"}], "parameters": {"keyAsIs": {"stringValue": "v"}}})");
  EXPECT_EQ(c.max_batch_size, 4);
  EXPECT_EQ(c.max_queue_delay_us, 100);
  EXPECT_EQ(c.instances, 2);
  EXPECT_EQ(c.parameters.at(0).first, "keyAsIs");
  EXPECT_EQ(c.queue.allow_timeout_override, std::optional<bool>(false));
  const std::string negative = refusal(R"({"max_batch_size": -4})", true);
  expect_parts(negative, {"'max_batch_size' is negative: -4"});
  EXPECT_EQ(negative.find("line"), std::string::npos) << negative;
}

TEST(FieldReaders, WhatIsPrintedCanBeGivenBack) {
  for (const char* text :
       {"max_batch_size: 4 dynamic_batching { default_queue_policy { allow_timeout_override: false } }",
        "max_batch_size: 4 sequence_batching { oldest { max_candidate_sequences: 3 } state { input_name: "
        "\"a\" "
        "output_name: \"b\" data_type: TYPE_FP32 dims: [ 2, 3 ] initial_state { data_type: TYPE_FP32 "
        "dims: [ 2, 3 ] data_file: \"f\" name: \"n\" } } }",
        "input { name: \"x\" data_type: TYPE_FP32 dims: 1 optional: true }"}) {
    const std::string json = config_json(parse_model_config(text)).dump();
    EXPECT_EQ(config_json(parse_model_config_json(json)).dump(), json) << text;
  }
  EXPECT_EQ(parse_model_config_json(
                config_json(parse_model_config("max_batch_size: 4 sequence_batching { state { input_name: "
                                               "\"a\" output_name: \"b\" data_type: "
                                               "TYPE_FP32 dims: 1 initial_state { data_file: \"f\" } } }"))
                    .dump())
                .sequence->states.at(0)
                .initial_file,
            "f");
}

TEST(FieldReaders, AServersGpuIsPrinted) {
  std::vector<InstanceGroup> none;
  name_device(none, 3, "cuda:1");
  ASSERT_EQ(none.size(), 1u);
  EXPECT_EQ(none[0].devices(), (std::vector<std::string>{"cuda:1", "cuda:1", "cuda:1"}));
  std::vector<InstanceGroup> told{{.kind = "KIND_CPU", .has_kind = true, .count = 2}};
  name_device(told, 2, "cuda:1");
  EXPECT_EQ(told[0].kind, "KIND_CPU");
  std::vector<InstanceGroup> host;
  name_device(host, 2, "cpu");
  EXPECT_TRUE(host.empty());
}

TEST(FieldReaders, DimsOfTheWholeModelLeaveNoBatch) {
  const tensor::Dim n = tensor::Dim::symbol("n");
  const ir::Graph open = copies({tensor::Shape({n, 4})});
  const ModelConfig c = completed("input { name: \"x0\" data_type: TYPE_FP32 dims: [ -1, 4 ] }", open);
  EXPECT_EQ(c.max_batch_size, 0);
  EXPECT_EQ(c.inputs.at(0).dims, (tensor::Dims{-1, 4}));
  EXPECT_EQ(completed("input { name: \"x0\" data_type: TYPE_FP32 dims: 4 }", open).max_batch_size, 32);
  EXPECT_EQ(completed("output { name: \"y0\" data_type: TYPE_FP32 dims: [ 2, 4 ] }", open).max_batch_size, 0);
  expect_parts(completion_error("dynamic_batching { }", copies({tensor::Shape({2, 4})})),
               {"max_batch_size > 0", "'x0'", "no open first dimension"});
  expect_parts(
      completion_error("max_batch_size: 4 input { name: \"x0\" data_type: TYPE_FP32 dims: [ -1, 4 ] }", open),
      {"[-1,4]", "[4]"});
  expect_parts(
      completion_error("input [ { name: \"x0\" data_type: TYPE_FP32 dims: 4 }, { name: \"x0\" data_type: "
                       "TYPE_FP32 dims: 4 } ]",
                       copies({tensor::Shape({n, 4}), tensor::Shape({n, 4})})),
      {"'x0' is there twice"});
}

TEST(FieldReaders, TheConfigKnowsARankThatTheModelDoesNot) {
  ir::Graph g;
  const ir::ValueId x = g.add_input("x", {tensor::DType::f32, tensor::Shape::unknown_rank()});
  g.add_output(g.add1(ops::table().need("relu"), {x}), "y");
  EXPECT_NE(completion_error("max_batch_size: 0", g).find("name it in config.pbtxt"), std::string::npos);
  const ModelConfig c = completed(
      "max_batch_size: 8 input { name: \"x\" data_type: TYPE_FP32 dims: [ 3, -1 ] } "
      "output { name: \"y\" data_type: TYPE_FP32 dims: [ 3, -1 ] }",
      g);
  EXPECT_EQ(c.inputs.at(0).dims, (tensor::Dims{3, -1}));
  EXPECT_TRUE(c.is_batched());
}

TEST(FieldReaders, AnEnsembleHasNoInstancesOfItsOwn) {
  const std::string steps =
      "ensemble_scheduling { step { model_name: \"m\" input_map { key: \"a\" value: \"X\" } "
      "output_map { key: \"b\" value: \"Y\" } } } ";
  EXPECT_EQ(refusal(steps + "max_batch_size: 4 parameters { key: \"note\" value { string_value: \"a\" } }"),
            "accepted");
  expect_parts(refusal(steps + "instance_group { count: 2 }"), {"'instance_group'", "ensemble"});
  expect_parts(refusal(steps + "model_warmup { name: \"w\" }"), {"'model_warmup'"});
  expect_parts(
      refusal(steps + "input { name: \"X\" data_type: TYPE_FP32 dims: 4 reshape { shape: [ 2, 2 ] } }"),
      {"input.reshape"});
  expect_parts(refusal(steps + "parameters { key: \"threads\" value { string_value: \"2\" } }"),
               {"'threads'"});
}

TEST(FieldReaders, SequencesSayWhatTheirStateIs) {
  const auto with = [](const std::string& rest) {
    return refusal("max_batch_size: 4 sequence_batching { " + rest + " }");
  };
  const std::string state = "state { input_name: \"a\" output_name: \"b\" data_type: TYPE_FP32 dims: 2 ";
  EXPECT_EQ(with(state + "initial_state { data_type: 11 dims: 2 zero_data: true name: \"n\" } }"),
            "accepted");
  expect_parts(with(state + "initial_state { data_type: TYPE_INT32 dims: 2 zero_data: true } }"),
               {"TYPE_FP32"});
  expect_parts(with(state + "initial_state { data_type: TYPE_FP32 dims: 3 zero_data: true } }"),
               {"[3]", "[2]"});
  expect_parts(with(state + "initial_state { zero_data: true data_file: \"f\" } }"), {"excludes"});
  expect_parts(with("oldest { preferred_batch_size: 9 }"), {"preferred_batch_size 9"});
  EXPECT_EQ(with("control_input { name: \"s\" control { kind: 0 fp32_false_true: [ 0, 1.0f ] } }"),
            "accepted");
}

TEST(FieldReaders, WarmupsCountAtLeastOnce) {
  EXPECT_EQ(parse_model_config("model_warmup { name: \"w\" count: 0 }").warmups.at(0).count, 1);
  expect_parts(refusal("model_warmup { name: \"w\" count: 10001 }"), {"model_warmup.count", "10000"});
}

}  // namespace
}  // namespace trireme::serve
