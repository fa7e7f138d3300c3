// Tests another kind of model behind the interface: text in, a stream of answers out, with its own way to
// compute them.
#include "serve/models/served_model.h"

#include <gtest/gtest.h>

#include "serve/models/border.h"
#include "serve/models/call.h"

namespace trireme::serve {
namespace {

constexpr sched::Timing kTiming{.enqueued_ns = 1, .started_ns = 2, .computed_ns = 3, .finished_ns = 4};

/// Answers with the letters of a text one by one, at once and on the caller's thread.
class Speller final : public ServedModel {
 public:
  explicit Speller(const ModelHost& host)
      : ServedModel({.name = "s", .version = "1", .path = "", .root = "", .config = {}}, speller_config(),
                    host, nullptr, 0) {}

  void infer(InferRequest request, InferSink sink) override {
    Call call(*this, request, std::move(sink));
    const CheckedInputs text = Border(config()).take_alone(request);
    for (char letter : text.tensors[0].strings[0]) {
      if (call.is_cancelled()) {
        return call.fail(base::Error(base::ErrorCode::unavailable, "the client left"),
                         sched::Ending::cancelled, kTiming);
      }
      InferResponse part = call.head();
      part.is_final = false;
      part.outputs.push_back(
          {.tensor = {.name = "letter", .dims = {1}, .strings = {std::string(1, letter)}}});
      call.give_part(std::move(part), 10, clock().now_ns());
    }
    call.answer([&] {
      InferResponse end = call.head();
      end.is_decoupled = true;
      end.timing = kTiming;
      return end;
    });
  }
  size_t waiting() const override { return 0; }
  void drain() override {}
  void stop() override {}

 private:
  static ModelConfig speller_config() {
    ModelConfig config;
    config.name = "s";
    config.inputs = {{.name = "text", .type = std::nullopt, .dims = {1}}};
    config.outputs = {{.name = "letter", .type = std::nullopt, .dims = {1}}};
    config.is_decoupled = true;
    return config;
  }
};

/// Records in one text what the observer and the client are told.
struct Story final : RequestObserver {
  std::string told;
  void on_answer(InferResponse& response) override {
    told += "answer ";
    response.traceparent = "t";
  }
  void on_failure() override { told += "failure "; }
  void on_told() override { told += "told"; }
};

class ServedModelTest : public testing::Test {
 protected:
  InferRequest request(const std::string& text) const {
    InferRequest request;
    request.id = "7";
    request.has_id = true;
    request.inputs.push_back({.name = "text", .dims = {1}, .strings = {text}});
    return request;
  }
  InferSink sink() {
    return {.done =
                [this](InferResponse&& r) {
                  story_->told += "done:" + r.id + ":" + r.traceparent + " ";
                  if (refuses_) base::fail_invalid("no wire form");
                  r.leave();
                },
            .failed = [this](const base::Error& e) { story_->told += "failed:" + e.message() + " "; },
            .cancelled = [this] { return letters_.size() >= most_; },
            .received_ns = clock_.now_ns(),
            .part = [this](InferResponse&& r) { letters_ += r.outputs.at(0).tensor.strings.at(0); },
            .observer = story_};
  }
  /// A count from the statistics.
  int64_t count(const char* kind) const {
    return model_.stats().at("inference_stats").at(kind).at("count").as_int();
  }

  ServeOptions options_;
  base::SystemClock clock_;
  base::Log log_{base::LogLevel::off};
  MetricRegistry metrics_;
  ResponseCache cache_{0};
  Tenants tenants_{"", {}, 1, metrics_};
  Speller model_{ModelHost{options_, base::Env{log_, clock_}, metrics_, {}, cache_, tenants_}};
  std::shared_ptr<Story> story_ = std::make_shared<Story>();
  std::string letters_;
  size_t most_ = 100;
  bool refuses_ = false;
};

TEST_F(ServedModelTest, GivesPartsThenTheEnd) {
  model_.infer(request("abc"), sink());
  EXPECT_EQ(letters_, "abc");
  EXPECT_EQ(story_->told, "answer done:7:t told");
  EXPECT_EQ(count("success"), 1);
  EXPECT_EQ(model_.stats().at("response_stats").as_object().size(), 3u);
}

TEST_F(ServedModelTest, EndsWhereTheClientLeft) {
  most_ = 2;
  model_.infer(request("abc"), sink());
  EXPECT_EQ(letters_, "ab");
  EXPECT_EQ(story_->told, "failure failed:the client left told");
  EXPECT_EQ(count("success"), 0);
  EXPECT_EQ(count("fail"), 1);
}

TEST_F(ServedModelTest, AnAnswerWithoutAWireFormIsAFailure) {
  refuses_ = true;
  model_.infer(request("a"), sink());
  EXPECT_EQ(story_->told, "answer done:7:t failure failed:no wire form told");
  EXPECT_EQ(count("success"), 0);
  EXPECT_EQ(count("fail"), 1);
}

TEST_F(ServedModelTest, AnswersForItsKind) {
  EXPECT_EQ(model_.metadata({"1"}).at("inputs").as_array().at(0).at("datatype").as_string(), "BYTES");
  EXPECT_TRUE(model_.is_well());
  EXPECT_FALSE(model_.takes_sequences());
  EXPECT_EQ(model_.memory().weight_bytes, 0);
  EXPECT_THROW(model_.infer({}, sink()), base::Error);
}

}  // namespace
}  // namespace trireme::serve
