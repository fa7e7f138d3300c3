// Runs of ensembles that are over while a step of theirs is not: nobody waits for it, and it touches nothing.
#include "serve/models/ensemble_model.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace trireme::serve {
namespace {

TensorConfig text_tensor(const std::string& name) {
  return {.name = name, .type = std::nullopt, .dims = {1}};
}

/// Begins with what it is given and keeps who waits for the answer.
class HeldStep final : public ServedModel {
 public:
  HeldStep(const ModelHost& host, const std::string& name)
      : ServedModel({.name = name, .version = "1", .path = "", .root = "", .config = {}}, step_config(name),
                    host, nullptr, 0) {}

  void infer(InferRequest, InferSink sink) override { sinks.push_back(std::move(sink)); }
  size_t waiting() const override { return sinks.size(); }
  void drain() override {}
  void stop() override {}

  void answer() {
    InferResponse response;
    response.outputs.push_back({.tensor = {.name = "out", .dims = {1}, .strings = {"an answer"}}});
    sinks.at(0).done(std::move(response));
  }

  std::vector<InferSink> sinks;

 private:
  static ModelConfig step_config(const std::string& name) {
    ModelConfig config;
    config.name = name;
    config.inputs = {text_tensor("in")};
    config.outputs = {text_tensor("out")};
    return config;
  }
};

class EnsembleModelTest : public testing::Test {
 protected:
  /// Both steps read x; `a` writes y, which is the answer, `b` writes z.
  void make(const std::vector<std::string>& outputs) {
    ModelSource source{.name = "e", .version = "1", .path = "", .root = "", .config = {}};
    source.config.inputs = {text_tensor("x")};
    for (const std::string& name : outputs) source.config.outputs.push_back(text_tensor(name));
    source.config.ensemble =
        EnsembleConfig{.steps = {{.model = "a", .inputs = {{"in", "x"}}, .outputs = {{"out", "y"}}},
                                 {.model = "b", .inputs = {{"in", "x"}}, .outputs = {{"out", "z"}}}}};
    ModelHost host = host_;
    host.find = [this](const std::string& name, const std::string&) { return steps_.at(name); };
    model_ = std::make_unique<EnsembleModel>(source, host, nullptr);
  }
  void infer() {
    InferRequest request;
    request.inputs.push_back({.name = "x", .dims = {1}, .strings = {"a text"}});
    model_->infer(std::move(request),
                  {.done =
                       [this](InferResponse&& r) {
                         told_ += "done:" + r.outputs.at(0).tensor.strings.at(0);
                         r.leave();
                       },
                   .failed = [this](const base::Error& e) { told_ += "failed:" + e.message(); },
                   .cancelled = {},
                   .received_ns = clock_.now_ns()});
  }
  HeldStep& step(const char* name) { return *steps_.at(name); }

  ServeOptions options_;
  base::SystemClock clock_;
  base::Log log_{base::LogLevel::off};
  MetricRegistry metrics_;
  ResponseCache cache_{0};
  Tenants tenants_{"", {}, 1, metrics_};
  const ModelHost host_{options_, base::Env{log_, clock_}, metrics_, {}, cache_, tenants_};
  std::map<std::string, std::shared_ptr<HeldStep>> steps_{{"a", std::make_shared<HeldStep>(host_, "a")},
                                                          {"b", std::make_shared<HeldStep>(host_, "b")}};
  std::unique_ptr<EnsembleModel> model_;
  std::string told_;
};

TEST_F(EnsembleModelTest, AStepThatHangsKeepsNoRunThatWasAnswered) {
  make({"y", "z"});
  infer();
  EXPECT_EQ(model_->waiting(), 1u);
  step("a").answer();
  EXPECT_EQ(model_->waiting(), 1u);
  // A watchdog tells of the other, whose run does not end: what the step was given stays with it.
  step("b").sinks.at(0).failed(base::Error(base::ErrorCode::unavailable, "it hangs"));
  EXPECT_NE(told_.find("failed:"), std::string::npos) << told_;
  ASSERT_EQ(model_->waiting(), 0u);
  model_->drain();
  model_.reset();
  EXPECT_TRUE(step("b").sinks.at(0).cancelled());
}

TEST_F(EnsembleModelTest, AStepThatEndsAfterItsRunTouchesNothing) {
  make({"y", "z"});
  infer();
  step("a").sinks.at(0).failed(base::Error(base::ErrorCode::internal, "it breaks"));
  const std::string told = told_;
  EXPECT_NE(told.find("failed:"), std::string::npos) << told;
  ASSERT_EQ(model_->waiting(), 0u);
  model_->drain();
  model_.reset();
  step("b").answer();
  EXPECT_EQ(told_, told);
}

// It would be cancelled once the answer is there, and counted as a failure of its model.
TEST_F(EnsembleModelTest, AStepThatNoOutputNeedsDoesNotStart) {
  make({"y"});
  infer();
  EXPECT_EQ(step("a").waiting(), 1u);
  EXPECT_EQ(step("b").waiting(), 0u);
  step("a").answer();
  EXPECT_EQ(told_, "done:an answer");
  EXPECT_EQ(step("b").waiting(), 0u);
}

}  // namespace
}  // namespace trireme::serve
