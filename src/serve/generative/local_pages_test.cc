// Prompts read by other instances of a model in one process: answers as alone, also where such an instance
// fails or has no room.
#include "serve/generative/local_pages.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "engine/decode/known_beginnings.h"
#include "serve/generative/test_gate.h"
#include "tests/tiny_llama.h"

namespace trireme::serve {
namespace {

using namespace engine;

struct LocalPagesTest : testing::Test {
  /// Two ranks, so that one can be lost.
  LocalPagesTest() {
    options.threads = 2;
    options.page_tokens = 4;
    options.max_tokens = 16;
    options.strategy.tp = 2;
    model::zoo::LlamaConfig c = tests::tiny_llama_config();
    c.layers = 1;
    model = std::make_shared<const DecodeModel>(tests::tiny_llama(c).graph, options);
  }
  std::shared_ptr<sched::TextService> instance(int failing = 0) {
    const auto made = std::make_shared<std::atomic<int>>(0);
    return std::make_shared<sched::TextService>(
        [this, made, failing] {
          auto session = std::make_unique<DecodeSession>(model, options);
          if ((*made)++ < failing) session->ranks().lose(1);
          return session;
        },
        sched::TextService::Options{}, clock);
  }
  /// One that is held up by the gate behind each step.
  std::shared_ptr<sched::TextService> held(Gate& gate, const base::Clock& own) {
    return std::make_shared<sched::TextService>(
        [this] { return std::make_unique<DecodeSession>(model, options); },
        sched::TextService::Options{.on_step = [&gate](const sched::TextStats&) { gate.hold(); }}, own);
  }
  static void give(sched::TextService& service, int64_t first, int64_t count) {
    std::vector<sched::TextRequest> requests;
    for (int64_t i = first; i < first + count; ++i)
      requests.push_back({.generate = request(i), .standing = {}, .listener = std::make_shared<Answer>()});
    service.submit_all(std::move(requests));
  }
  std::unique_ptr<sched::TextService> decode(std::shared_ptr<sched::PageSource> pages) {
    return std::make_unique<sched::TextService>(
        [this] { return std::make_unique<DecodeSession>(model, options); },
        sched::TextService::Options{.pages = std::move(pages)}, clock);
  }

  class Answer final : public sched::TextListener {
   public:
    void on_pages(int64_t asked_ns, int64_t now_ns) override {
      EXPECT_GT(asked_ns, 0);
      EXPECT_GE(now_ns, asked_ns);
      has_waited = true;
    }
    void on_begin(int64_t) override {}
    bool on_token(const GenerateEvent& event) override {
      tokens.push_back(event.token);
      return true;
    }
    void on_end(FinishReason) override { end(); }
    void on_error(const base::Error& e) override {
      ADD_FAILURE() << e.message();
      end();
    }
    bool is_gone() const override { return false; }
    std::vector<int64_t> tokens;
    bool has_waited = false;
    std::atomic<int> over{0};

   private:
    void end() {
      over = 1;
      over.notify_all();
    }
  };
  static GenerateRequest request(int64_t i) {
    GenerateRequest r;
    for (int64_t t = 0; t < 20 + i; ++t) r.prompt.push_back((i % 3 * 13 + t * 5) % 61);
    r.prompt.push_back(i);
    r.max_tokens = 5;
    r.sampling.temperature = i % 2 == 0 ? 0 : 0.8;
    r.sampling.seed = i;
    return r;
  }
  using Answers = std::vector<std::vector<int64_t>>;
  static Answers answers(sched::TextService& service, int64_t count = 20) {
    std::vector<std::shared_ptr<Answer>> all;
    for (int64_t i = 0; i < count; ++i) {
      all.push_back(std::make_shared<Answer>());
      service.submit({.generate = request(i), .standing = {}, .listener = all.back()});
    }
    Answers found;
    for (const auto& answer : all) {
      answer->over.wait(0);
      found.push_back(answer->tokens);
    }
    return found;
  }
  uint64_t fallbacks(const char* reason) {
    return registry
        .counter("trireme_text_hand_over_fallbacks_total", "",
                 {{"model_name", "m"}, {"engine", "0"}, {"reason", reason}})
        .value();
  }
  uint64_t pages() {
    return registry.counter("trireme_text_handed_pages_total", "", {{"model_name", "m"}, {"engine", "0"}})
        .value();
  }

  DecodeOptions options;
  std::shared_ptr<const DecodeModel> model;
  base::SystemClock clock;
  MetricRegistry registry;
  HandOverMetrics metrics{registry, "m"};
  PrefillOptions prefill{.prefill_least = 4};
};

TEST_F(LocalPagesTest, AnswersAreThoseOfOneInstance) {
  const Answers alone = answers(*decode(nullptr));
  const LocalPages::Instances instances{instance(), instance()};
  const auto pages_of = std::make_shared<LocalPages>(instances, prefill, metrics, 0);
  const auto service = decode(pages_of);
  EXPECT_EQ(answers(*service), alone);
  EXPECT_GT(pages(), 50u);
  EXPECT_GT(service->stats().handed_tokens, 0);
  for (const char* reason : {"busy", "failed", "late", "partial"}) EXPECT_EQ(fallbacks(reason), 0u) << reason;
}

TEST_F(LocalPagesTest, AnInstanceThatFailsLosesNoAnswer) {
  const Answers alone = answers(*decode(nullptr));
  const LocalPages::Instances instances{instance(1)};
  const auto service = decode(std::make_shared<LocalPages>(instances, prefill, metrics, 0));
  EXPECT_EQ(answers(*service), alone);
  EXPECT_GT(fallbacks("failed"), 0u);
  const uint64_t before = pages();
  EXPECT_EQ(answers(*decode(std::make_shared<LocalPages>(instances, prefill, metrics, 0))), alone);
  EXPECT_GT(pages(), before);  // it found a new session
}

/// What was given to an instance counts at once, and not when its step is through.
TEST_F(LocalPagesTest, APromptGoesToWhoHasTheFewest) {
  Gate busy, idle;
  const LocalPages::Instances instances{held(busy, clock), held(idle, clock)};
  const LocalPages pages_of(instances, prefill, metrics, 0);
  give(*instances[0], 0, 1);
  busy.is_reached.wait(false);
  give(*instances[1], 0, 2);
  idle.is_reached.wait(false);
  EXPECT_EQ(&pages_of.idlest(), instances[0].get());
  give(*instances[0], 1, 3);
  EXPECT_EQ(&pages_of.idlest(), instances[1].get());
  EXPECT_EQ(instances[0]->stats().under_way, 4u);
  for (Gate* gate : {&busy, &idle}) gate->open();
  for (const auto& instance : instances) {
    EXPECT_TRUE(instance->drain());
    EXPECT_EQ(instance->stats().under_way, 0u);
  }
}

TEST_F(LocalPagesTest, WhoHangsIsGivenNoPrompt) {
  base::FakeClock fake(1000);
  Gate hanging, between, other;
  between.open();
  const LocalPages::Instances instances{held(between, fake), held(other, fake)};
  const LocalPages pages_of(instances, prefill, metrics, base::kNsPerSecond);
  LocalPages alone({instances[0]}, prefill, metrics, base::kNsPerSecond);
  GenerateRequest stuck = request(0);
  stuck.filter = std::make_shared<HangingFilter>(hanging);
  instances[0]->submit({.generate = stuck, .standing = {}, .listener = std::make_shared<Answer>()});
  hanging.is_reached.wait(false);
  give(*instances[1], 0, 2);
  other.is_reached.wait(false);
  EXPECT_EQ(&pages_of.idlest(), instances[0].get());
  EXPECT_FALSE(instances[0]->drain(base::kNsPerMs));
  fake.advance(base::kNsPerSecond);
  EXPECT_EQ(&pages_of.idlest(), instances[1].get());
  EXPECT_THROW(alone.idlest(), base::Error);
  const auto wish = std::make_shared<sched::PageWish>(
      request(1), 0, sched::PageWish::Form{.first = 0, .page_tokens = 4, .page_bytes = 64},
      [](const std::shared_ptr<const HandedPages>&) {});
  EXPECT_FALSE(alone.ask(wish));
  EXPECT_EQ(fallbacks("busy"), 1u);
  for (Gate* gate : {&hanging, &other}) gate->open();
  for (const auto& instance : instances) EXPECT_TRUE(instance->drain());
}

TEST_F(LocalPagesTest, RoomAndLengthBoundWhatIsAsked) {
  const Answers alone = answers(*decode(nullptr));
  prefill.prefill_room.bytes = 3 * options.page_tokens * 2 * 2 * 8 * 4;
  const LocalPages::Instances instances{instance()};
  EXPECT_EQ(answers(*decode(std::make_shared<LocalPages>(instances, prefill, metrics, 0))), alone);
  EXPECT_GT(pages(), 0u);
  prefill.prefill_room.bytes = 1;
  const uint64_t before = pages();
  EXPECT_EQ(answers(*decode(std::make_shared<LocalPages>(instances, prefill, metrics, 0))), alone);
  EXPECT_EQ(pages(), before);
  EXPECT_GT(fallbacks("busy"), 0u);
  prefill = {.prefill_least = 1000};
  EXPECT_EQ(answers(*decode(std::make_shared<LocalPages>(instances, prefill, metrics, 0))), alone);
  EXPECT_EQ(pages(), before);
}

}  // namespace
}  // namespace trireme::serve
