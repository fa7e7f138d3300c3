// Versions that are to go: they are waited for, unless a step of theirs hangs.
#include "serve/repository/old_versions.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

#include "serve/models/text_model.h"

namespace trireme::serve {
namespace {

/// A language model that answers nothing, whose step hangs when it is told to.
class StillModel final : public ServedModel, public TextModel {
 public:
  struct State {
    std::atomic<bool> hangs{false}, is_gone{false};
    std::atomic<int> drains{0};
  };
  StillModel(const ModelHost& host, State& state)
      : ServedModel({.name = "m", .version = "1", .path = "", .root = "", .config = {}}, {}, host, nullptr,
                    0),
        state_(state) {}
  ~StillModel() override { state_.is_gone = true; }

  TextModel* texts() override { return this; }
  void infer(InferRequest, InferSink) override { none(); }
  size_t waiting() const override { return 0; }
  bool is_well() const override { return !state_.hangs; }
  void drain() override { ++state_.drains; }
  void stop() override {}

  const data::Tokenizer& tokenizer() const override { none(); }
  int64_t max_length() const override { return 1; }
  std::string chat_prompt(const Chat&) const override { none(); }
  ToolForm tool_form() const override { return ToolForm::bare; }
  std::shared_ptr<sched::AnswerGrammar> grammar(const std::string&,
                                                const std::function<data::Grammar()>&) override {
    none();
  }
  bool takes_adapters() const override { return false; }
  std::vector<std::string> adapters() const override { return {}; }
  std::shared_ptr<const engine::LoadedAdapter> adapter(std::string_view) const override { none(); }
  void load_adapter(const std::string&, const std::string&) override { none(); }
  void unload_adapter(std::string_view) override { none(); }
  void ask(size_t, const std::function<AskedText(size_t)>&) override { none(); }
  void give_pages(const PagesRequest&, std::shared_ptr<PageReader>) override { none(); }

 private:
  [[noreturn]] static void none() { base::fail_unsupported("nothing is asked of it"); }

  State& state_;
};

struct OldVersionsTest : testing::Test {
  std::shared_ptr<ServedModel> make() {
    const ModelHost host{options, base::Env{log, clock}, metrics, {}, cache, tenants};
    return std::make_shared<StillModel>(host, state);
  }
  bool retire(std::shared_ptr<ServedModel> model) {
    OldVersions::Models gone;
    gone.push_back(std::move(model));
    return old.retire(std::move(gone));
  }

  ServeOptions options;
  base::SystemClock clock;
  base::Log log{base::LogLevel::off};
  MetricRegistry metrics;
  ResponseCache cache{0};
  Tenants tenants{"", {}, 1, metrics};
  StillModel::State state;
  OldVersions old;
};

TEST_F(OldVersionsTest, WhoUsesAModelIsWaitedFor) {
  std::shared_ptr<ServedModel> user = make();
  std::thread leaves([&, held = user]() mutable {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_FALSE(state.is_gone);
    held.reset();
  });
  EXPECT_TRUE(retire(std::move(user)));
  leaves.join();
  EXPECT_TRUE(state.is_gone);
  EXPECT_EQ(state.drains, 1);
  EXPECT_TRUE(old.empty());
}

/// It goes once its step is through and nobody uses it; changes of other models don't wait for that.
TEST_F(OldVersionsTest, AModelThatHangsIsLeftForLater) {
  std::shared_ptr<ServedModel> user = make();
  state.hangs = true;
  EXPECT_FALSE(retire(user));
  EXPECT_FALSE(old.empty());
  old.retire_ended("");
  EXPECT_FALSE(state.is_gone);
  state.hangs = false;
  old.retire_ended("");  // its texts go on
  EXPECT_FALSE(old.empty());
  user.reset();
  EXPECT_FALSE(state.is_gone);
  old.retire_ended("");
  EXPECT_TRUE(state.is_gone);
  EXPECT_TRUE(old.empty());
  EXPECT_EQ(state.drains, 1);
}

/// A drain gives up on a step that hangs.
TEST_F(OldVersionsTest, AModelThatHangsInItsDrainIsLeftForLater) {
  state.hangs = true;
  EXPECT_FALSE(retire(make()));
  EXPECT_FALSE(state.is_gone);
  state.hangs = false;
  old.retire_ended("");
  EXPECT_TRUE(state.is_gone);
  EXPECT_EQ(state.drains, 2);
}

}  // namespace
}  // namespace trireme::serve
