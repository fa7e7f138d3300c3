// Tests quotas: which requests are admitted, when the next one is, and what the headers say.
#include "serve/access/quota.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "base/clock.h"

namespace trireme::serve {
namespace {

using base::kNsPerSecond;

constexpr int64_t kStart = 1000 * kNsPerSecond;

std::string header(const ReplyHeaders& list, const std::string& name) {
  const auto at = std::find_if(list.begin(), list.end(), [&](const auto& h) { return h.first == name; });
  return at == list.end() ? "none" : at->second;
}

/// Takes a request of `tokens` tokens. Returns "" if it is admitted, else the seconds of Retry-After.
std::string retry(QuotaAccount& account, int64_t tokens, int64_t now_ns) {
  try {
    account.take(tokens, now_ns);
    return "";
  } catch (const QuotaError& error) {
    return header(error.headers(), "Retry-After");
  }
}

TEST(Quota, AMinutesRequestsAtOnceAndThenAtTheirPace) {
  QuotaAccount account({.requests = 6});
  for (int i = 0; i < 6; ++i) EXPECT_EQ(retry(account, 1'000'000, kStart), "");
  EXPECT_EQ(retry(account, 1, kStart), "10");
  EXPECT_EQ(retry(account, 1, kStart + 9 * kNsPerSecond), "1");
  EXPECT_EQ(retry(account, 1, kStart + 10 * kNsPerSecond), "");
  EXPECT_EQ(retry(account, 1, kStart + 10 * kNsPerSecond), "10");
  // An idle hour saves up no more than the quota of one minute.
  int taken = 0;
  while (retry(account, 1, kStart + 3600 * kNsPerSecond).empty()) ++taken;
  EXPECT_EQ(taken, 6);
  EXPECT_EQ(account.refusals(), 4);
}

TEST(Quota, TokensComeBackAndMayBeOwed) {
  auto account = std::make_shared<QuotaAccount>(Quota{.tokens = 600});
  {
    TokenCharge charge(account, 100, 400, kStart);
    EXPECT_EQ(retry(*account, 200, kStart), "10") << "what answers may have is held for them";
    EXPECT_EQ(account->used_tokens(), 100) << "and not counted before it is made";
    charge.spend(50);
    EXPECT_EQ(account->used_tokens(), 150);
    charge.settle();
    EXPECT_EQ(retry(*account, 0, kStart), "") << "all answers are made";
    EXPECT_EQ(account->used_tokens(), 150) << "what goes back was never counted";
  }
  EXPECT_EQ(header(account->headers(kStart), "x-ratelimit-remaining-tokens"), "450");
  EXPECT_EQ(account->used_tokens(), 150);
  {
    TokenCharge charge(account, 150, 0, kStart);  // the length of the answer is unknown
    charge.spend(900);
  }
  EXPECT_EQ(account->used_tokens(), 150 + 150 + 900);
  EXPECT_EQ(header(account->headers(kStart), "x-ratelimit-remaining-tokens"), "0");
  EXPECT_EQ(retry(*account, 0, kStart), "61") << "600 owed, and one token";
  EXPECT_EQ(retry(*account, 60, kStart + 66 * kNsPerSecond), "");
  EXPECT_THROW(
      {
        try {
          account->take(601, kStart);
        } catch (const base::Error& error) {
          EXPECT_EQ(error.code(), base::ErrorCode::invalid_argument) << "no wait helps";
          throw;
        }
      },
      base::Error);
}

TEST(Quota, HeadersAreThoseOfTheOpenAiApi) {
  QuotaAccount account({.requests = 60, .tokens = 60'000});
  account.take(30'000, kStart);
  const ReplyHeaders list = account.headers(kStart);
  EXPECT_EQ(header(list, "x-ratelimit-limit-requests"), "60");
  EXPECT_EQ(header(list, "x-ratelimit-remaining-requests"), "59");
  EXPECT_EQ(header(list, "x-ratelimit-reset-requests"), "1s");
  EXPECT_EQ(header(list, "x-ratelimit-limit-tokens"), "60000");
  EXPECT_EQ(header(list, "x-ratelimit-remaining-tokens"), "30000");
  EXPECT_EQ(header(list, "x-ratelimit-reset-tokens"), "30s");
  EXPECT_TRUE(QuotaAccount({}).headers(kStart).empty()) << "no quota, no header";
}

TEST(Quota, ANewQuotaKeepsWhatIsLeft) {
  QuotaAccount account({.requests = 10});
  for (int i = 0; i < 8; ++i) account.take(1, kStart);
  account.set({.requests = 60}, kStart);
  EXPECT_EQ(header(account.headers(kStart), "x-ratelimit-remaining-requests"), "2");
  account.set({.requests = 1, .tokens = 5}, kStart);
  EXPECT_EQ(header(account.headers(kStart), "x-ratelimit-remaining-requests"), "1");
  EXPECT_EQ(header(account.headers(kStart), "x-ratelimit-remaining-tokens"), "5");
}

TEST(Quota, ThreadsTogetherTakeNoMoreThanThereIs) {
  QuotaAccount account({.requests = 1000});
  std::atomic<int> taken{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) taken += retry(account, 1, kStart).empty() ? 1 : 0;
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(taken, 1000);
}

}  // namespace
}  // namespace trireme::serve
