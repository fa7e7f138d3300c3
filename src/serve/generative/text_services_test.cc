// The sessions of a language model: nobody waits for a step that hangs.
#include "serve/generative/text_services.h"

#include <gtest/gtest.h>

#include <atomic>

#include "serve/generative/test_gate.h"
#include "tests/tiny_llama.h"

namespace trireme::serve {
namespace {

class EndListener final : public sched::TextListener {
 public:
  void on_step(int64_t at_ns) override { began_ns = at_ns; }
  void on_begin(int64_t) override {}
  bool on_token(const engine::GenerateEvent&) override { return true; }
  void on_end(engine::FinishReason) override { end(); }
  void on_error(const base::Error&) override { end(); }
  bool is_gone() const override { return false; }
  std::atomic<bool> is_over{false};
  std::atomic<int64_t> began_ns{0};

 private:
  void end() {
    is_over = true;
    is_over.notify_all();
  }
};

TEST(TextServices, ADrainDoesNotWaitForAStepThatHangs) {
  ServeOptions options;
  base::FakeClock clock(1000);
  base::Log log{base::LogLevel::off};
  MetricRegistry metrics;
  ResponseCache cache{0};
  Tenants tenants{"", {}, 1, metrics};
  const ModelHost host{options, base::Env{log, clock}, metrics, {}, cache, tenants};
  const ServedAdapters adapters(nullptr);
  Gate gate;
  const auto model = std::make_shared<const engine::DecodeModel>(tests::tiny_llama().graph);
  const auto make = [model] {
    return std::make_unique<engine::DecodeSession>(model, engine::DecodeOptions{.threads = 1});
  };
  TextServices services({.name = "m", .make = make}, adapters, host);
  const auto listener = std::make_shared<EndListener>();
  engine::GenerateRequest request{.prompt = {1, 2, 3}, .max_tokens = 2};
  request.filter = std::make_shared<HangingFilter>(gate);
  services.answering().submit({.generate = request, .standing = {}, .listener = listener});
  gate.is_reached.wait(false);
  EXPECT_TRUE(services.is_well());
  clock.advance(options.runs.instance_timeout.ns);
  EXPECT_FALSE(services.is_well());
  services.drain();
  EXPECT_FALSE(listener->is_over);
  gate.open();
  listener->is_over.wait(false);
}

/// A text waits until the step that reads its prompt begins, and not until it is told behind that step.
TEST(TextServices, AQueueEndsWhereTheFirstStepBegins) {
  base::FakeClock clock(1000);
  Gate gate;
  const auto model = std::make_shared<const engine::DecodeModel>(tests::tiny_llama().graph);
  const auto make = [model] {
    return std::make_unique<engine::DecodeSession>(model, engine::DecodeOptions{.threads = 1});
  };
  sched::TextService service(make, {}, clock);
  const auto listener = std::make_shared<EndListener>();
  engine::GenerateRequest request{.prompt = {1, 2, 3}, .max_tokens = 2};
  request.filter = std::make_shared<HangingFilter>(gate);
  service.submit({.generate = request, .standing = {}, .listener = listener});
  gate.is_reached.wait(false);
  clock.advance(1000000);
  gate.open();
  listener->is_over.wait(false);
  EXPECT_EQ(listener->began_ns, 1000);
}

/// A model's own bound of its queue goes before the server's.
TEST(TextServices, AModelBoundsWhoWaits) {
  ServeOptions options;
  base::SystemClock clock;
  base::Log log{base::LogLevel::off};
  MetricRegistry metrics;
  ResponseCache cache{0};
  Tenants tenants{"", {}, 1, metrics};
  const ModelHost host{options, base::Env{log, clock}, metrics, {}, cache, tenants};
  const ServedAdapters adapters(nullptr);
  const auto model = std::make_shared<const engine::DecodeModel>(tests::tiny_llama().graph);
  const auto make = [model] {
    return std::make_unique<engine::DecodeSession>(model, engine::DecodeOptions{.threads = 1});
  };
  TextServices services({.name = "m", .make = make, .max_waiting = 2}, adapters, host);
  std::vector<sched::TextRequest> requests;
  for (int i = 0; i < 3; ++i) {
    engine::GenerateRequest request{.prompt = {1, 2, 3}, .max_tokens = 2};
    requests.push_back({.generate = request, .standing = {}, .listener = std::make_shared<EndListener>()});
  }
  EXPECT_THROW(services.answering().submit_all(requests), base::Error);
  requests.pop_back();
  EXPECT_NO_THROW(services.answering().submit_all(requests));
}

}  // namespace
}  // namespace trireme::serve
