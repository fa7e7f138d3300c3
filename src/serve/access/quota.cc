// Limits the requests and tokens that a tenant may use per minute.
#include "serve/access/quota.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/clock.h"

namespace trireme::serve {
namespace {

constexpr double kMinuteNs = 60.0 * static_cast<double>(base::kNsPerSecond);

/// A duration in the notation of the OpenAI API: 12ms, 1s, 6m0s.
std::string duration_text(int64_t ns) {
  const int64_t ms = (ns + base::kNsPerMs - 1) / base::kNsPerMs, seconds = (ms + 999) / 1000;
  if (ms < 1000) return base::concat(ms, "ms");
  if (seconds < 60) return base::concat(seconds, "s");
  return base::concat(seconds / 60, "m", seconds % 60, "s");
}

}  // namespace

void QuotaAccount::Bucket::fill(int64_t passed_ns) {
  const auto whole = static_cast<double>(limit);
  left = std::min(whole, left + whole * static_cast<double>(passed_ns) / kMinuteNs);
}

/// Time until the bucket holds `wanted`.
int64_t QuotaAccount::Bucket::wait_ns(double wanted) const {
  if (limit == 0 || left >= wanted) return 0;
  return static_cast<int64_t>(std::ceil((wanted - left) / static_cast<double>(limit) * kMinuteNs));
}

void QuotaAccount::fill(State& state, int64_t now_ns) {
  const int64_t passed_ns = state.at_ns == 0 ? 0 : std::max<int64_t>(0, now_ns - state.at_ns);
  state.at_ns = std::max(now_ns, state.at_ns);
  state.requests.fill(passed_ns);
  state.tokens.fill(passed_ns);
}

QuotaAccount::QuotaAccount(const Quota& quota)
    : state_({.requests = {quota.requests, static_cast<double>(quota.requests)},
              .tokens = {quota.tokens, static_cast<double>(quota.tokens)}}) {}

void QuotaAccount::set(const Quota& quota, int64_t now_ns) {
  const auto change = [](Bucket& bucket, int64_t limit) {
    // A bucket that had no limit, or holds more than the new limit, becomes full.
    const auto whole = static_cast<double>(limit);
    bucket = {limit, bucket.limit == 0 ? whole : std::min(whole, bucket.left)};
  };
  state_.with([&](State& state) {
    fill(state, now_ns);
    change(state.requests, quota.requests);
    change(state.tokens, quota.tokens);
  });
}

void QuotaAccount::take(int64_t tokens, int64_t now_ns) {
  const auto wanted = static_cast<double>(tokens);
  state_.with([&](State& state) {
    fill(state, now_ns);
    Bucket &requests = state.requests, &of_tokens = state.tokens;
    base::require(of_tokens.limit == 0 || tokens <= of_tokens.limit, "prompt and answer of ", tokens,
                  " tokens are more than the ", of_tokens.limit, " that this key may have in a minute");
    // A bucket below 0 admits no request, not even one that takes nothing from it.
    const int64_t wait_ns = std::max(requests.wait_ns(1), of_tokens.wait_ns(std::max(wanted, 1.0)));
    if (wait_ns > 0) {
      ++refusals_;
      const bool is_requests = requests.wait_ns(1) == wait_ns;
      ReplyHeaders headers = headers_of(state);
      headers.emplace_back("Retry-After",
                           std::to_string((wait_ns + base::kNsPerSecond - 1) / base::kNsPerSecond));
      throw QuotaError(base::concat("this key's quota of ", is_requests ? requests.limit : of_tokens.limit,
                                    is_requests ? " requests" : " tokens", " a minute is used up; in ",
                                    duration_text(wait_ns), " there is enough of it"),
                       std::move(headers));
    }
    if (requests.limit > 0) requests.left -= 1;
    if (of_tokens.limit > 0) of_tokens.left -= wanted;
  });
}

void QuotaAccount::give_back(int64_t tokens) {
  state_.with([&](State& state) {
    Bucket& bucket = state.tokens;
    if (bucket.limit > 0)
      bucket.left = std::min(static_cast<double>(bucket.limit), bucket.left + static_cast<double>(tokens));
  });
}

ReplyHeaders QuotaAccount::headers_of(const State& state) {
  ReplyHeaders list;
  const auto add = [&](const std::string& what, const Bucket& bucket) {
    if (bucket.limit == 0) return;
    const auto left = static_cast<int64_t>(std::max(0.0, std::floor(bucket.left)));
    list.emplace_back("x-ratelimit-limit-" + what, std::to_string(bucket.limit));
    list.emplace_back("x-ratelimit-remaining-" + what, std::to_string(left));
    list.emplace_back("x-ratelimit-reset-" + what,
                      duration_text(bucket.wait_ns(static_cast<double>(bucket.limit))));
  };
  add("requests", state.requests);
  add("tokens", state.tokens);
  return list;
}

ReplyHeaders QuotaAccount::headers(int64_t now_ns) const {
  State state = state_.copy();
  fill(state, now_ns);
  return headers_of(state);
}

TokenCharge::TokenCharge(std::shared_ptr<QuotaAccount> account, int64_t prompt_tokens, int64_t answer_tokens,
                         int64_t now_ns)
    : account_(std::move(account)), reserved_(answer_tokens) {
  account_->take(prompt_tokens + answer_tokens, now_ns);
  account_->count(prompt_tokens);
}

}  // namespace trireme::serve
