// Tests the repository without a network: what loads, the state after failures, versions, raw requests, and
// replacement under load.
#include "serve/repository/repository.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <future>
#include <thread>

#include "base/files/file.h"
#include "model/onnx/export.h"
#include "ops/table.h"

namespace trireme::serve {
namespace {

namespace fs = std::filesystem;
using tensor::Tensor;

/// y = x + number, x [batch, 4], as an ONNX file.
void write_model(const fs::path& path, float number) {
  ir::Graph g;
  const ir::ValueId x =
      g.add_input("x", {tensor::DType::f32, {tensor::Dim::symbol("batch"), tensor::Dim(4)}});
  const ir::ValueId b = g.add_param("b", Tensor::from<float>({4}, std::vector<float>(4, number)));
  g.add_output(g.add1(ops::table().need("add"), {x, b}), "y");
  fs::create_directories(path.parent_path());
  model::onnx::save_onnx(g, path.string());
}

class RepositoryTest : public ::testing::Test {
 protected:
  RepositoryTest() {
    root_ = fs::temp_directory_path() / ("trireme-repository-" + std::to_string(::getpid()));
    fs::remove_all(root_);
    fs::create_directories(root_);
    options_.model_repository = {root_.string()};
    options_.model_control = ModelControl::explicitly;
    options_.threads = 1;
    options_.warm_up = WarmUpLevel::none;
    options_.batch_window = {0};
  }
  ~RepositoryTest() override { fs::remove_all(root_); }

  void start() {
    repository_ = std::make_unique<Repository>(options_, env_, metrics_);
    repository_->load();
  }
  /// Returns the error of a load or unload, or "".
  std::string change(const std::function<void(Repository::Done)>& request) {
    std::promise<std::string> said;
    request([&](const std::optional<base::Error>& error) { said.set_value(error ? error->message() : ""); });
    return said.get_future().get();
  }
  std::string load(const std::string& name, LoadOverride given = {}) {
    return change([&](Repository::Done done) { repository_->request_load(name, given, std::move(done)); });
  }
  std::string unload(const std::string& name) {
    return change([&](Repository::Done done) { repository_->request_unload(name, false, std::move(done)); });
  }
  /// Returns y[0] for x = 0; throws the error of the request.
  float ask(const std::string& name, const std::string& version = "") {
    const std::string body(16, '\0');
    const auto model = repository_->catalog()->find(name, version);
    const TensorConfig& input = model->config().inputs.at(0);
    InferRequest request;
    request.inputs.push_back(tensor_from_bytes(input.name, input.type, {1, 4}, {body}));
    std::promise<float> answer;
    model->infer(
        std::move(request),
        {.done = [&](InferResponse&& r) { answer.set_value(r.outputs[0].tensor.values.data<float>()[0]); },
         .failed = [&](const base::Error& e) { answer.set_exception(std::make_exception_ptr(e)); },
         .cancelled = {},
         .received_ns = env_.clock.now_ns()});
    return answer.get_future().get();
  }

  fs::path root_;
  ServeOptions options_;
  base::SystemClock clock_;
  base::Log log_{base::LogLevel::off};
  base::Env env_{log_, clock_};
  MetricRegistry metrics_;
  std::unique_ptr<Repository> repository_;
};

TEST_F(RepositoryTest, LoadsReloadsAndUnloads) {
  write_model(root_ / "m/1/model.onnx", 1);
  start();
  EXPECT_THROW(ask("m"), base::Error);
  EXPECT_EQ(load("m"), "");
  EXPECT_EQ(ask("m"), 1);
  write_model(root_ / "m/1/model.onnx", 2);
  EXPECT_EQ(ask("m"), 1);
  EXPECT_EQ(load("m"), "");
  EXPECT_EQ(ask("m"), 2);
  base::write_file_atomic((root_ / "m/1/model.onnx").string(), "nonsense");
  EXPECT_NE(load("m").find("serves on as it was"), std::string::npos);
  EXPECT_EQ(ask("m"), 2);
  EXPECT_EQ(unload("m"), "");
  EXPECT_THROW(ask("m"), base::Error);
  EXPECT_EQ(unload("nothing"), "");
  EXPECT_NE(load("nothing").find("failed to poll from model repository"), std::string::npos);
  EXPECT_FALSE(repository_->has_failures());
}

TEST(Catalog, AModelThatComesOrGoesIsSaidTo) {
  Catalog catalog;
  catalog.models["new"] = {.versions = {}, .state = "LOADING", .reason = "", .is_unloaded = false};
  catalog.models["old"].versions[1] = {.model = nullptr, .state = "UNLOADING", .reason = ""};
  catalog.models["bad"].versions[1] = {.model = nullptr, .state = "UNAVAILABLE", .reason = "it is broken"};
  const auto told = [&](const char* name) -> std::string {
    try {
      catalog.find(name, "");
    } catch (const base::Error& e) {
      return e.message();
    }
    return "found";
  };
  EXPECT_NE(told("new").find("has no available versions: it is LOADING"), std::string::npos) << told("new");
  EXPECT_NE(told("old").find("has no available versions: it is UNLOADING"), std::string::npos) << told("old");
  EXPECT_NE(told("bad").find("has no available versions: it is broken"), std::string::npos) << told("bad");
}

TEST_F(RepositoryTest, SeriesOfTextsGoWithTheirModel) {
  write_model(root_ / "m/1/model.onnx", 1);
  for (const char* name : {"m", "other"})
    metrics_.gauge("vllm:num_requests_running", "Texts", {{"model_name", name}, {"engine", "0"}}).set(3);
  const auto shows = [&](const std::string& series) {
    return metrics_.expose().find(series) != std::string::npos;
  };
  start();
  EXPECT_TRUE(shows("{model_name=\"m\",engine=\"0\"} 3\n"));
  ASSERT_EQ(load("m"), "");
  EXPECT_TRUE(shows("{model=\"m\",version=\"1\"}"));
  EXPECT_FALSE(shows("model_name=\"m\"")) << "what serves now continues no texts";
  ASSERT_EQ(unload("m"), "");
  EXPECT_FALSE(shows("model_name=\"m\"")) << "nothing serves";
  EXPECT_FALSE(shows("model=\"m\""));
  EXPECT_TRUE(shows("model_name=\"other\""));
}

TEST_F(RepositoryTest, InstancesThatAreNoMoreAreNotShown) {
  write_model(root_ / "m/1/model.onnx", 1);
  const auto instances = [](int count) {
    return LoadOverride{.config = base::concat("{\"instance_group\": [{\"count\": ", count, "}]}"),
                        .files = {}};
  };
  const auto shows = [&](int instance) {
    const std::string labels = base::concat("{model=\"m\",version=\"1\",instance=\"", instance, "\"}");
    return metrics_.expose().find("trireme_instance_busy_seconds_total" + labels) != std::string::npos;
  };
  start();
  ASSERT_EQ(load("m", instances(2)), "");
  EXPECT_TRUE(shows(0) && shows(1) && !shows(2));
  ASSERT_EQ(load("m", instances(1)), "");
  EXPECT_EQ(ask("m"), 1);
  EXPECT_TRUE(shows(0) && !shows(1));
  ASSERT_EQ(load("m", instances(3)), "");
  EXPECT_EQ(ask("m"), 1);
  EXPECT_TRUE(shows(0) && shows(1) && shows(2));
}

TEST_F(RepositoryTest, AnswersThatWereKeptWaitForTheirTurn) {
  write_model(root_ / "m/1/model.onnx", 1);
  start();
  const char* config = R"({"max_batch_size": 4, "response_cache": {"enable": true}, "dynamic_batching":
                           {"preserve_ordering": true, "max_queue_delay_microseconds": 50000}})";
  ASSERT_EQ(load("m", {.config = config, .files = {}}), "");
  EXPECT_EQ(ask("m"), 1) << "is kept from now on";
  const auto model = repository_->catalog()->find("m", "");
  std::vector<std::string> order;  // answers come one at a time
  std::promise<void> all;
  const auto begin = [&](const char* id, const std::string& body) {
    InferRequest request;
    request.id = id;
    request.inputs.push_back(tensor_from_bytes("x", tensor::DType::f32, {1, 4}, {body}));
    const auto told = [&order, &all](const std::string& what) {
      order.push_back(what);
      if (order.size() == 3) all.set_value();
    };
    model->infer(std::move(request), {.done = [told](InferResponse&& r) { told(r.id); },
                                      .failed = [told](const base::Error& e) { told(e.message()); },
                                      .cancelled = {},
                                      .received_ns = env_.clock.now_ns()});
  };
  begin("computed", std::string(16, '\1'));
  begin("kept", std::string(16, '\0'));
  begin("kept too", std::string(16, '\0'));
  all.get_future().get();
  EXPECT_EQ(order, (std::vector<std::string>{"computed", "kept", "kept too"}));
}

TEST_F(RepositoryTest, ServesTheVersionsOfThePolicy) {
  for (int v = 1; v <= 3; ++v)
    write_model(root_ / "m" / std::to_string(v) / "model.onnx", static_cast<float>(v));
  write_model(root_ / "m/04/model.onnx", 4);  // not a version, because of the leading zero
  base::write_file_atomic((root_ / "m/config.pbtxt").string(),
                          "version_policy { specific { versions: [1, 3] } }");
  start();
  EXPECT_EQ(load("m"), "");
  EXPECT_EQ(ask("m"), 3);
  EXPECT_EQ(ask("m", "1"), 1);
  EXPECT_THROW(ask("m", "2"), base::Error);
  EXPECT_EQ(repository_->catalog()->versions("m"), (std::vector<std::string>{"1", "3"}));
}

TEST_F(RepositoryTest, TakesAConfigWithTheRequest) {
  write_model(root_ / "m/1/model.onnx", 5);
  start();
  EXPECT_EQ(load("m", {.config = R"({"max_batch_size": 2})", .files = {}}), "");
  EXPECT_EQ(repository_->catalog()->find("m", "")->config().max_batch_size, 2);
  EXPECT_NE(load("m", {.config = R"({"name": "x"})", .files = {}}), "");
  EXPECT_EQ(load("m"), "");
  EXPECT_EQ(repository_->catalog()->find("m", "")->config().max_batch_size, 32);
}

// Statistics over the batch would reveal one client's rows to another: without a config, each request is
// answered alone.
TEST_F(RepositoryTest, BatchesOnlyWhereRowsAreApart) {
  for (const bool of_batch : {false, true}) {
    const std::string name = of_batch ? "mixed" : "apart";
    ir::Graph g;
    const ir::ValueId x =
        g.add_input("x", {tensor::DType::f32, {tensor::Dim::symbol("batch"), tensor::Dim(4)}});
    const ir::ValueId c = g.add_param("c", Tensor::from<float>({4}, std::vector<float>(4, 1)));
    const ir::Attrs attrs{{"training_mode", int64_t{of_batch}}};
    g.add_output(g.add(ops::table().need("batch_norm"), {x, c, c, c, c}, attrs, of_batch ? 3 : 1)[0], "y");
    fs::create_directories(root_ / name / "1");
    model::onnx::save_onnx(g, (root_ / name / "1/model.onnx").string());
  }
  start();
  EXPECT_EQ(load("apart"), "");
  EXPECT_EQ(repository_->catalog()->find("apart", "")->config().max_batch_size, 32);
  EXPECT_EQ(load("mixed"), "");
  EXPECT_EQ(repository_->catalog()->find("mixed", "")->config().max_batch_size, 0);
}

TEST_F(RepositoryTest, NoRequestFailsWhileModelsAreSwapped) {
  write_model(root_ / "m/1/model.onnx", 0);
  start();
  ASSERT_EQ(load("m"), "");
  std::atomic<bool> stop{false};
  std::atomic<int> asked{0}, failed{0};
  std::vector<std::thread> clients;
  for (int i = 0; i < 4; ++i) {
    clients.emplace_back([&] {
      while (!stop) {
        try {
          const float answer = ask("m");
          failed += answer < 0 || answer > 10;
          ++asked;
        } catch (const base::Error&) {
          ++failed;
        }
      }
    });
  }
  for (int i = 1; i <= 10; ++i) {
    write_model(root_ / "m/1/model.onnx", static_cast<float>(i));
    EXPECT_EQ(load("m"), "");
    EXPECT_EQ(ask("m"), static_cast<float>(i));
  }
  stop = true;
  for (std::thread& t : clients) t.join();
  EXPECT_EQ(failed, 0);
  EXPECT_GT(asked, 10);
}

// An interval of 0 means that files are not looked at after the start, not that they are all the time.
TEST_F(RepositoryTest, PollsNeverWithoutAnInterval) {
  options_.model_control = ModelControl::poll;
  options_.poll_interval = {0};
  write_model(root_ / "m/1/model.onnx", 1);
  start();
  EXPECT_EQ(ask("m"), 1);
  write_model(root_ / "later/1/model.onnx", 2);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_THROW(ask("later"), base::Error);
}

TEST_F(RepositoryTest, AnswersOfDecoupledModelsAreReshaped) {
  write_model(root_ / "m/1/model.onnx", 1);
  const std::string decoupled = "max_batch_size: 8 model_transaction_policy { decoupled: true } ";
  const std::string output =
      "output { name: \"y\" data_type: TYPE_FP32 dims: [ 2, 2 ] reshape { shape: [ 4 ] } } ";
  base::write_file_atomic((root_ / "m/config.pbtxt").string(), decoupled + output);
  start();
  ASSERT_EQ(load("m"), "");
  const std::string body(32, '\0');
  InferRequest request;
  request.inputs.push_back(tensor_from_bytes("x", tensor::DType::f32, {2, 4}, {body}));
  std::promise<tensor::Dims> end;
  tensor::Dims given;
  InferSink sink;
  sink.received_ns = env_.clock.now_ns();
  sink.part = [&](InferResponse&& r) { given = r.outputs.at(0).tensor.dims; };
  sink.done = [&](InferResponse&&) { end.set_value(given); };
  sink.failed = [&](const base::Error& e) { end.set_exception(std::make_exception_ptr(e)); };
  repository_->catalog()->find("m", "")->infer(std::move(request), std::move(sink));
  EXPECT_EQ(end.get_future().get(), (tensor::Dims{2, 2, 2}));
  base::write_file_atomic(
      (root_ / "m/config.pbtxt").string(),
      decoupled + output + "parameters { key: \"stream_rows\" value { string_value: \"true\" } }");
  EXPECT_NE(load("m").find("stream_rows"), std::string::npos);
}

// A request to a circle would never end. What its models were before serves on.
TEST_F(RepositoryTest, EnsemblesFormNoCircleOverLoads) {
  const auto ensemble = [](const std::string& step) {
    const auto tensor = [](const char* kind, const char* name) {
      return base::concat("\"", kind, "\": [{\"name\": \"", name,
                          "\", \"data_type\": \"TYPE_FP32\", \"dims\": [4]}], ");
    };
    return LoadOverride{.config = base::concat(
                            "{\"platform\": \"ensemble\", \"max_batch_size\": 8, ", tensor("input", "x"),
                            tensor("output", "y"), "\"ensemble_scheduling\": {\"step\": [{\"model_name\": \"",
                            step, "\", \"input_map\": {\"x\": \"x\"}, \"output_map\": {\"y\": \"y\"}}]}}"),
                        .files = {}};
  };
  for (const char* name : {"a", "b", "c"}) write_model(root_ / name / "1/model.onnx", 1);
  start();
  ASSERT_EQ(load("a"), "");
  EXPECT_NE(load("a", ensemble("a")).find("step of itself"), std::string::npos);
  ASSERT_EQ(load("b", ensemble("a")), "");
  ASSERT_EQ(load("c", ensemble("b")), "");
  EXPECT_NE(load("a", ensemble("c")).find("step of an ensemble among its steps"), std::string::npos);
  EXPECT_EQ(ask("c"), 1);
}

TEST_F(RepositoryTest, EachPriorityLevelHasAQueueOfItsOwn) {
  options_.delay_scheduler = 100;  // nothing runs before the end
  write_model(root_ / "m/1/model.onnx", 1);
  base::write_file_atomic((root_ / "m/config.pbtxt").string(),
                          "max_batch_size: 8 dynamic_batching { priority_levels: 2 default_priority_level: 2 "
                          "default_queue_policy { max_queue_size: 1 } }");
  start();
  ASSERT_EQ(load("m"), "");
  const std::string body(16, '\0');
  std::atomic<int> refused{0}, answered{0};
  const auto is_taken = [&](uint64_t priority) {
    const int before = refused;
    InferRequest request;
    request.priority = priority;
    request.inputs.push_back(tensor_from_bytes("x", tensor::DType::f32, {1, 4}, {body}));
    InferSink sink;
    sink.received_ns = env_.clock.now_ns();
    sink.done = [&](InferResponse&&) { ++answered; };
    sink.failed = [&](const base::Error&) { ++refused; };
    repository_->catalog()->find("m", "")->infer(std::move(request), std::move(sink));
    return refused == before;
  };
  EXPECT_TRUE(is_taken(2));
  EXPECT_FALSE(is_taken(2));
  EXPECT_TRUE(is_taken(1));
  EXPECT_FALSE(is_taken(1));
  EXPECT_EQ(unload("m"), "");
  EXPECT_EQ(answered, 2);
}

TEST_F(RepositoryTest, CountsGoOnAfterALoadThatFailed) {
  write_model(root_ / "m/1/model.onnx", 1);
  const auto config = [&](const char* input) {
    base::write_file_atomic(
        (root_ / "m/config.pbtxt").string(),
        base::concat(
            "max_batch_size: 8 response_cache { enable: true } model_warmup { name: \"w\" batch_size: 1 "
            "inputs { key: \"",
            input, "\" value { data_type: TYPE_FP32 dims: 4 zero_data: true } } }"));
  };
  start();
  config("z");
  EXPECT_NE(load("m").find("model_warmup"), std::string::npos);
  config("x");
  ASSERT_EQ(load("m"), "");
  EXPECT_EQ(ask("m"), 1);
  const std::string shown = metrics_.expose();
  EXPECT_NE(shown.find("nv_cache_num_misses_per_model{model=\"m\",version=\"1\"} 1\n"), std::string::npos)
      << shown;
}

TEST_F(RepositoryTest, AModelMayHaveNoInputs) {
  ir::Graph g;
  const ir::ValueId c = g.add_constant(Tensor::from<float>({2}, std::vector<float>{3, 4}));
  g.add_output(g.add1(ops::table().need("identity"), {c}), "y");
  fs::create_directories(root_ / "m/1");
  model::onnx::save_onnx(g, (root_ / "m/1/model.onnx").string());
  start();
  ASSERT_EQ(load("m"), "");
  std::promise<std::vector<double>> answer;
  repository_->catalog()->find("m", "")->infer(
      {}, {.done = [&](InferResponse&& r) { answer.set_value(r.outputs[0].tensor.values.to_doubles()); },
           .failed = [&](const base::Error& e) { answer.set_exception(std::make_exception_ptr(e)); },
           .cancelled = {},
           .received_ns = env_.clock.now_ns()});
  EXPECT_EQ(answer.get_future().get(), (std::vector<double>{3, 4}));
  base::write_file_atomic((root_ / "m/config.pbtxt").string(), "max_batch_size: 4");
  EXPECT_NE(load("m").find("without inputs"), std::string::npos);
}

// Opening a pipe that nobody writes to would never end, and no other model would be loaded.
TEST_F(RepositoryTest, AConfigThatIsAPipeIsRefused) {
  write_model(root_ / "m/1/model.onnx", 1);
  ASSERT_EQ(::mkfifo((root_ / "m/config.pbtxt").c_str(), 0600), 0);
  start();
  EXPECT_NE(load("m").find("not a regular file"), std::string::npos);
}

// The zeros of the warm-up are values that nobody sent, unless the config asks for them.
TEST_F(RepositoryTest, AModelThatRefusesZerosLoads) {
  ir::Graph g;
  const ir::ValueId x = g.add_input("x", {tensor::DType::i64, {tensor::Dim(2)}});
  const ir::ValueId five = g.add_constant(Tensor::scalar(int64_t{5}));
  const ir::ValueId table = g.add_constant(Tensor::zeros(tensor::DType::f32, {1}));
  const ir::ValueId at = g.add1(ops::table().need("sub"), {x, five});
  g.add_output(g.add1(ops::table().need("gather"), {table, at}, {{"axis", int64_t{0}}}), "y");
  fs::create_directories(root_ / "m/1");
  model::onnx::save_onnx(g, (root_ / "m/1/model.onnx").string());
  options_.warm_up = WarmUpLevel::compile;
  start();
  EXPECT_EQ(load("m"), "");
  base::write_file_atomic((root_ / "m/config.pbtxt").string(),
                          "max_batch_size: 0 model_warmup { name: \"w\" inputs { key: \"x\" value { "
                          "data_type: TYPE_INT64 dims: 2 zero_data: true } } }");
  EXPECT_NE(load("m").find("out of range"), std::string::npos);
}

// A request without rows would be padded to a batch of a size that the client names at no cost to itself.
TEST_F(RepositoryTest, RequestsHaveARowAtLeast) {
  write_model(root_ / "m/1/model.onnx", 1);
  start();
  ASSERT_EQ(load("m"), "");
  const auto model = repository_->catalog()->find("m", "");
  InferRequest request;
  request.inputs.push_back(tensor_from_bytes("x", tensor::DType::f32, {0, 4}, {""}));
  try {
    model->infer(std::move(request), {.done = [](InferResponse&&) {},
                                      .failed = [](const base::Error&) {},
                                      .cancelled = {},
                                      .received_ns = env_.clock.now_ns()});
    FAIL() << "a request without rows was taken";
  } catch (const base::Error& e) {
    EXPECT_EQ(e.code(), base::ErrorCode::invalid_argument);
    EXPECT_NE(e.message().find("batch-size must be >= 1"), std::string::npos) << e.message();
  }
}

}  // namespace
}  // namespace trireme::serve
