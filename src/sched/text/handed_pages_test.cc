// Texts whose prompts other sessions read: the same answers to the bit, whatever comes of the pages.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <thread>

#include "base/rng.h"
#include "engine/pages/handed_pages.h"
#include "sched/text/text_service.h"
#include "tests/test_device.h"
#include "tests/tiny_llama.h"

namespace trireme::sched {
namespace {

using namespace engine;

constexpr int64_t kHandedTokens = 4;  // of a page

DecodeOptions handing_options(int64_t pages = 200) {
  DecodeOptions o{.threads = 1, .page_tokens = kHandedTokens, .max_sequences = 3, .max_tokens = 24};
  o.cache_bytes = pages * kHandedTokens * 2 * 2 * 2 * 8 * 4;  // layers, keys and values, heads, dim, f32
  return o;
}

std::shared_ptr<const DecodeModel> handing_model() {
  static const auto model = std::make_shared<const DecodeModel>(tests::tiny_llama().graph, handing_options());
  return model;
}

std::unique_ptr<DecodeSession> handing_session(int64_t pages = 200) {
  return std::make_unique<DecodeSession>(handing_model(), handing_options(pages));
}

GenerateRequest handing_request(base::Rng& random) {
  GenerateRequest r;
  const uint64_t family = random.below(3), shared = random.below(30), own = 1 + random.below(40);
  for (uint64_t t = 0; t < shared; ++t) r.prompt.push_back(static_cast<int64_t>((family * 17 + t * 5) % 61));
  for (uint64_t t = 0; t < own; ++t) r.prompt.push_back(static_cast<int64_t>(random.below(61)));
  r.max_tokens = 1 + static_cast<int64_t>(random.below(9));
  r.sampling.temperature = random.below(2) == 0 ? 0 : 0.9;
  r.sampling.repetition_penalty = random.below(3) == 0 ? 1.2 : 1;
  r.sampling.seed = static_cast<int64_t>(random.below(1000));
  return r;
}

/// Keeps pages as they are computed.
struct KeptPages final : PageTaker {
  explicit KeptPages(int64_t from = 0, int64_t at_most = INT64_MAX) : first(from), most(at_most) {}
  int64_t next() const override { return first + static_cast<int64_t>(contents.size()); }
  bool take(std::shared_ptr<const PageBytes> page) override {
    contents.push_back(std::move(page));
    return static_cast<int64_t>(contents.size()) < most;
  }
  std::shared_ptr<HandedPages> handed() const {
    auto made = std::make_shared<HandedPages>();
    made->first = first;
    for (const auto& page : contents) made->pages.push_back(page->bytes().data());
    made->owner = std::make_shared<std::vector<std::shared_ptr<const PageBytes>>>(contents);
    return made;
  }
  const int64_t first, most;
  std::vector<std::shared_ptr<const PageBytes>> contents;
};

struct HandedRun {
  std::vector<std::pair<int64_t, double>> answer;  ///< tokens and the logarithms of their chances
  FinishReason finish = FinishReason::none;
  int64_t ran = 0;
  TokenScheduler::Begun begun;
};

HandedRun run_one(TokenScheduler& scheduler, const GenerateRequest& request) {
  HandedRun run;
  scheduler.add(request);
  while (!scheduler.is_idle()) {
    for (const GenerateEvent& e : scheduler.step()) {
      if (e.token >= 0) run.answer.emplace_back(e.token, e.log_probability);
      run.finish = e.finish;
    }
    run.ran += scheduler.step_tokens();
    for (const TokenScheduler::Begun& begun : scheduler.begun()) run.begun = begun;
  }
  return run;
}

/// Has a prompt's full pages computed by another session.
std::shared_ptr<KeptPages> compute_pages(TokenScheduler& other, const GenerateRequest& request,
                                         int64_t first = 0, int64_t most = INT64_MAX) {
  const auto kept = std::make_shared<KeptPages>(first, most);
  GenerateRequest prompt;
  const int64_t full = (static_cast<int64_t>(request.prompt.size()) - 1) / kHandedTokens * kHandedTokens;
  if (full == 0) return kept;
  prompt.prompt.assign(request.prompt.begin(), request.prompt.begin() + full);
  prompt.max_tokens = 1;
  prompt.taker = kept;
  run_one(other, prompt);
  return kept;
}

TEST(HandedPages, AnswersAreTheSameBits) {
  base::Rng random(7);
  constexpr int64_t kAll = 1500;  // pages: nothing is given up
  const auto plain = handing_session(kAll), reader = handing_session(kAll), taker = handing_session(kAll);
  TokenScheduler alone(*plain), prefill(*reader), decode(*taker);
  int64_t handed_tokens = 0;
  for (int i = 0; i < 60; ++i) {
    GenerateRequest request = handing_request(random);
    const HandedRun want = run_one(alone, request);
    const int64_t known = taker->beginnings().reach(request.prompt, request.origin());
    request.handed = compute_pages(prefill, request, known)->handed();
    const HandedRun got = run_one(decode, request);
    ASSERT_EQ(got.answer, want.answer) << i;
    EXPECT_EQ(got.begun.known_tokens, want.begun.known_tokens) << i;
    EXPECT_EQ(got.begun.known_tokens, known * kHandedTokens) << i;
    EXPECT_EQ(got.begun.handed_tokens, static_cast<int64_t>(request.handed->pages.size()) * kHandedTokens)
        << i;
    EXPECT_EQ(got.ran, want.ran - got.begun.handed_tokens) << i;
    handed_tokens += got.begun.handed_tokens;
  }
  EXPECT_GT(handed_tokens, 500);
  EXPECT_EQ(taker->free_pages(), taker->pool().pages());
}

/// Pages that do not follow on what is known, more than there are, fewer, and none at all.
TEST(HandedPages, WhatDoesNotFitIsComputed) {
  base::Rng random(3);
  GenerateRequest request = handing_request(random);
  request.prompt.resize(50, 7);
  const auto plain = handing_session(), reader = handing_session();
  TokenScheduler alone(*plain), prefill(*reader);
  const HandedRun want = run_one(alone, request);
  const auto all = compute_pages(prefill, request);
  ASSERT_EQ(all->contents.size(), 12u);  // 48 of 49 tokens
  const auto handed_of = [&](const std::shared_ptr<const HandedPages>& handed, int64_t pages = 200) {
    const auto session = handing_session(pages);
    TokenScheduler decode(*session);
    GenerateRequest with = request;
    with.handed = handed;
    const HandedRun got = run_one(decode, with);
    EXPECT_EQ(got.answer, want.answer);
    EXPECT_EQ(session->free_pages(), session->pool().pages());
    return got.begun.handed_tokens;
  };
  EXPECT_EQ(handed_of(all->handed()), 48);
  EXPECT_EQ(handed_of(compute_pages(prefill, request, 1)->handed()), 0);      // the first is not known
  EXPECT_EQ(handed_of(compute_pages(prefill, request, 0, 5)->handed()), 20);  // the other side ended early
  EXPECT_EQ(handed_of(std::make_shared<HandedPages>()), 0);
  auto more = all->handed();
  more->pages.push_back(more->pages.front());
  EXPECT_EQ(handed_of(more), 48);
  // The same pages twice, and behind others that a text which began alike had left.
  const auto session = handing_session();
  TokenScheduler decode(*session);
  request.handed = all->handed();
  EXPECT_EQ(run_one(decode, request).answer, want.answer);
  const HandedRun again = run_one(decode, request);
  EXPECT_EQ(again.answer, want.answer);
  EXPECT_EQ(again.begun.known_tokens, 48);
  EXPECT_EQ(again.begun.handed_tokens, 0);
}

/// What the session that reads is asked again it gives from what it remembers, and it goes on where nobody
/// takes its pages any more.
TEST(HandedPages, TheReaderRemembers) {
  base::Rng random(5);
  GenerateRequest request = handing_request(random);
  request.prompt.resize(50, 3);
  const auto session = handing_session();
  TokenScheduler prefill(*session);
  const auto first = compute_pages(prefill, request), second = compute_pages(prefill, request);
  ASSERT_EQ(first->contents.size(), second->contents.size());
  for (size_t i = 0; i < first->contents.size(); ++i) {
    const auto a = first->contents[i]->bytes(), b = second->contents[i]->bytes();
    EXPECT_TRUE(std::equal(a.begin(), a.end(), b.begin(), b.end())) << i;
  }
  EXPECT_GT(prefill.shared_tokens(), 0);
  EXPECT_EQ(compute_pages(prefill, request, 0, 2)->contents.size(), 2u);
  EXPECT_EQ(session->free_pages(), session->pool().pages());
}

/// A device is given steps before the last one is through: pages are read behind those that fill them.
TEST(HandedPages, OnADevice) {
  const auto device = tests::cuda_device();
  if (!device) GTEST_SKIP() << tests::kNoGpu;
  DecodeOptions o = handing_options();
  o.device = *device;
  const auto model = std::make_shared<const DecodeModel>(tests::tiny_llama().graph, o);
  DecodeSession plain(model, o), reader(model, o), taker(model, o);
  ASSERT_EQ(reader.depth(), 2);
  TokenScheduler alone(plain), prefill(reader), decode(taker);
  base::Rng random(13);
  for (int i = 0; i < 6; ++i) {
    GenerateRequest request = handing_request(random);
    request.prompt.resize(40 + static_cast<size_t>(i), i);
    const HandedRun want = run_one(alone, request);
    request.handed =
        compute_pages(prefill, request, taker.beginnings().reach(request.prompt, request.origin()))->handed();
    const HandedRun got = run_one(decode, request);
    EXPECT_GT(got.begun.handed_tokens, 0) << i;
    ASSERT_EQ(got.answer.size(), want.answer.size()) << i;
    // Kernels of a device sum in another order for another number of rows.
    for (size_t t = 0; t < want.answer.size(); ++t) {
      EXPECT_EQ(got.answer[t].first, want.answer[t].first) << i << " " << t;
      EXPECT_NEAR(got.answer[t].second, want.answer[t].second, 1e-5) << i << " " << t;
    }
  }
}

/// A listener that keeps what it is told.
class HandedListener final : public TextListener {
 public:
  void on_begin(int64_t known_tokens) override { known = known_tokens; }
  bool on_token(const GenerateEvent& event) override {
    tokens.push_back(event.token);
    return true;
  }
  void on_end(FinishReason how) override {
    reason = how;
    end();
  }
  void on_error(const base::Error& e) override {
    error = e;
    end();
  }
  bool is_gone() const override { return gone; }
  void wait() const { over.wait(0); }

  std::vector<int64_t> tokens;
  FinishReason reason = FinishReason::none;
  std::optional<base::Error> error;
  std::atomic<int> over{0};
  std::atomic<bool> gone{false};
  int64_t known = -1;

 private:
  void end() {
    EXPECT_EQ(over.fetch_add(1), 0);
    over.notify_all();
  }
};

/// Keeps wishes until the test sees to them.
class HeldWishes final : public PageSource {
 public:
  bool ask(const std::shared_ptr<PageWish>& wish) override {
    if (wish->pages() < 3) return false;
    const std::lock_guard lock(mutex_);
    wishes_.push_back(wish);
    changed_.notify_all();
    return true;
  }
  std::chrono::nanoseconds patience() const override { return patience_ns; }
  void count_late() override { ++late; }

  std::shared_ptr<PageWish> wish(size_t i) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return wishes_.size() > i; });
    return wishes_[i];
  }
  size_t size() {
    const std::lock_guard lock(mutex_);
    return wishes_.size();
  }
  std::atomic<int> late{0};
  std::chrono::nanoseconds patience_ns = std::chrono::hours(1);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<PageWish>> wishes_;
};

struct ParkedRequests : testing::Test {
  ParkedRequests() {
    base::Rng random(1);
    long_one = handing_request(random);
    long_one.prompt.resize(50, 9);
    long_one.max_tokens = 6;
    short_one = long_one;
    short_one.prompt.resize(9);
    short_one.prompt[0] = (short_one.prompt[0] + 1) % 61;  // it begins otherwise
  }
  std::shared_ptr<HandedListener> ask(const GenerateRequest& request, const Standing& standing = {}) {
    auto listener = std::make_shared<HandedListener>();
    service->submit({.generate = request, .standing = standing, .listener = listener});
    return listener;
  }
  /// Whether it is told of its end before long.
  static bool ends(const HandedListener& listener) {
    for (int i = 0; i < 1000 && listener.over == 0; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return listener.over == 1;
  }
  std::vector<int64_t> alone(const GenerateRequest& request) const {
    const auto session = handing_session();
    TokenScheduler scheduler(*session);
    std::vector<int64_t> tokens;
    for (const auto& [token, chance] : run_one(scheduler, request).answer) tokens.push_back(token);
    return tokens;
  }
  base::SystemClock clock;
  GenerateRequest long_one, short_one;
  const std::shared_ptr<HeldWishes> source = std::make_shared<HeldWishes>();
  std::unique_ptr<TextService> service = std::make_unique<TextService>(
      [] { return handing_session(); }, TextService::Options{.pages = source}, clock);
};

TEST_F(ParkedRequests, OthersGoOnAndEqualPromptsAreAskedForOnce) {
  const auto first = ask(long_one), second = ask(long_one);
  const auto wish = source->wish(0);
  EXPECT_EQ(wish->tokens().size(), 48u);
  EXPECT_EQ(wish->pages(), 12);
  EXPECT_EQ(wish->form().page_bytes, handing_options().cache_bytes / 200);
  const auto other = ask(short_one);
  other->wait();
  EXPECT_EQ(other->tokens, alone(short_one));
  EXPECT_EQ(first->over + second->over, 0);
  const auto session = handing_session();
  TokenScheduler prefill(*session);
  wish->deliver(compute_pages(prefill, long_one, wish->form().first)->handed());
  for (const auto& listener : {first, second}) {
    listener->wait();
    EXPECT_EQ(listener->tokens, alone(long_one));
  }
  EXPECT_EQ(first->known, 0);    // what another session computed is not what was known
  EXPECT_EQ(second->known, 48);  // but it is for the next text
  EXPECT_EQ(source->size(), 1u);
  service->drain();
  EXPECT_EQ(service->stats().handed_tokens, 48);
  EXPECT_EQ(service->stats().waiting, 0u);
  // All of it is known now: nobody is asked.
  EXPECT_FALSE(wish->is_wanted());
}

TEST_F(ParkedRequests, NothingComes) {
  const auto listener = ask(long_one);
  source->wish(0)->deliver(nullptr);
  listener->wait();
  EXPECT_EQ(listener->tokens, alone(long_one));
  EXPECT_EQ(service->stats().handed_tokens, 0);
}

TEST_F(ParkedRequests, WhatIsLateIsComputedHere) {
  source->patience_ns = std::chrono::milliseconds(5);
  const auto listener = ask(long_one);
  listener->wait();
  EXPECT_EQ(listener->tokens, alone(long_one));
  EXPECT_EQ(source->late, 1);
  const auto wish = source->wish(0);
  EXPECT_FALSE(wish->is_wanted());
  wish->deliver(std::make_shared<HandedPages>());  // tells nobody
}

TEST_F(ParkedRequests, WhoLeavesIsWaitedForNoMore) {
  const auto listener = ask(long_one);
  const auto wish = source->wish(0);
  listener->gone = true;
  listener->wait();
  EXPECT_EQ(listener->reason, FinishReason::cancelled);
  EXPECT_FALSE(wish->is_wanted());
  EXPECT_EQ(source->late, 0);
  EXPECT_TRUE(listener->tokens.empty());
}

TEST_F(ParkedRequests, WhoLeavesOthersIsToldAtOnce) {
  const auto stays = ask(long_one), leaves = ask(long_one);
  const auto wish = source->wish(0);
  leaves->gone = true;
  ASSERT_TRUE(ends(*leaves));
  EXPECT_EQ(leaves->reason, FinishReason::cancelled);
  EXPECT_EQ(stays->over, 0);
  EXPECT_TRUE(wish->is_wanted());
  wish->deliver(nullptr);
  stays->wait();
  EXPECT_EQ(stays->tokens, alone(long_one));
}

/// Half of its own time is left for computing, whoever waits for the same pages.
TEST_F(ParkedRequests, WhoHasLessTimeDoesNotWaitForOthersPages) {
  const auto first = ask(long_one);
  source->wish(0);
  const auto second = ask(long_one, {.deadline_ns = clock.now_ns() + 2 * base::kNsPerSecond});
  EXPECT_TRUE(ends(*second));
  EXPECT_EQ(second->tokens, alone(long_one));
  EXPECT_EQ(first->over, 0);
  EXPECT_EQ(source->size(), 2u);
  EXPECT_EQ(source->late, 1);
  source->wish(0)->deliver(nullptr);
  first->wait();
  EXPECT_EQ(first->tokens, alone(long_one));
}

TEST_F(ParkedRequests, AStopFailsThemAndADrainWaits) {
  const auto listener = ask(long_one);
  const auto wish = source->wish(0);
  std::thread drain([&] { service->drain(); });
  while (true) {  // until it drains
    try {
      ask(short_one);
    } catch (const base::Error&) {
      break;
    }
  }
  EXPECT_EQ(listener->over, 0);
  EXPECT_TRUE(service->stop());
  drain.join();
  ASSERT_TRUE(listener->error);
  EXPECT_EQ(listener->error->code(), base::ErrorCode::unavailable);
  service.reset();
  wish->deliver(std::make_shared<HandedPages>());
}

/// Wishes come back from other threads in any order, also while they are asked for.
TEST_F(ParkedRequests, ManyAtOnce) {
  class Threads final : public PageSource {
   public:
    bool ask(const std::shared_ptr<PageWish>& wish) override {
      const size_t i = count_++;
      if (i % 5 == 4) return false;
      if (i % 5 == 3) {
        wish->deliver(nullptr);
        return true;
      }
      threads_.emplace_back([this, wish] {
        const std::lock_guard lock(mutex_);
        GenerateRequest request;
        request.prompt = wish->tokens();
        request.prompt.push_back(0);
        wish->deliver(compute_pages(prefill_, request, wish->form().first)->handed());
      });
      return true;
    }
    ~Threads() override {
      for (std::thread& t : threads_) t.join();
    }
    std::chrono::nanoseconds patience() const override { return std::chrono::hours(1); }
    void count_late() override {}

   private:
    size_t count_ = 0;
    std::mutex mutex_;
    std::unique_ptr<DecodeSession> session_ = handing_session();
    TokenScheduler prefill_{*session_};
    std::vector<std::thread> threads_;
  };
  base::Rng random(2);
  std::vector<GenerateRequest> requests;
  std::vector<std::shared_ptr<HandedListener>> listeners;
  service = std::make_unique<TextService>([] { return handing_session(40); },
                                          TextService::Options{.pages = std::make_shared<Threads>()}, clock);
  for (int i = 0; i < 80; ++i) {
    requests.push_back(handing_request(random));
    listeners.push_back(ask(requests.back()));
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    listeners[i]->wait();
    EXPECT_EQ(listeners[i]->tokens, alone(requests[i])) << i;
  }
  EXPECT_GT(service->stats().handed_tokens, 0);
  service.reset();
}

}  // namespace
}  // namespace trireme::sched
