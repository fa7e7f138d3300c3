// How many requests and tokens a tenant may have in a minute, and what is left of them.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/guarded.h"

namespace trireme::serve {

/// Names and values.
using ReplyHeaders = std::vector<std::pair<std::string, std::string>>;

/// In a minute; 0: no bound.
struct Quota {
  int64_t requests = 0, tokens = 0;

  bool is_bounded() const { return requests > 0 || tokens > 0; }
  bool operator==(const Quota&) const = default;
};

/// What a tenant has left of its quota: a bucket of requests and one of tokens, each as large as a minute's
/// quota and filled at that pace. Any thread.
class QuotaAccount {
 public:
  explicit QuotaAccount(const Quota& quota);

  /// From now on; what is left stays, as far as the new buckets hold it.
  void set(const Quota& quota, int64_t now_ns);
  /// Takes a request and so many tokens. Throws QuotaError where not so many are left, invalid_argument where
  /// a minute's quota is less.
  void take(int64_t tokens, int64_t now_ns);
  /// Of tokens that were taken some were not needed; below 0: more were.
  void give_back(int64_t tokens);
  /// So many tokens were read or made: for used_tokens(), whatever was taken for them.
  void count(int64_t tokens) { used_tokens_ += tokens; }
  /// The x-ratelimit-* headers of the OpenAI API: limits, what is left, and how long until all is.
  ReplyHeaders headers(int64_t now_ns) const;

  /// Never falls.
  int64_t used_tokens() const { return used_tokens_; }
  int64_t refusals() const { return refusals_; }

 private:
  /// Full at `limit`; without a limit it is not looked at.
  struct Bucket {
    int64_t limit = 0;
    double left = 0;

    void fill(int64_t passed_ns);
    int64_t wait_ns(double wanted) const;
  };
  struct State {
    Bucket requests, tokens;
    int64_t at_ns = 0;  ///< when they were filled last; 0: never
  };
  static void fill(State& state, int64_t now_ns);
  static ReplyHeaders headers_of(const State& state);

  base::Guarded<State> state_;
  std::atomic<int64_t> used_tokens_{0}, refusals_{0};
};

/// A quota that is used up: 429 with the headers that say when to come again.
class QuotaError : public base::Error {
 public:
  QuotaError(const std::string& what, ReplyHeaders headers)
      : base::Error(base::ErrorCode::exhausted, what), headers_(std::move(headers)) {}
  const ReplyHeaders& headers() const { return headers_; }

 private:
  ReplyHeaders headers_;
};

/// What a request has taken of its tenant's tokens, shared by its answers.
class TokenCharge {
 public:
  /// Takes a request and its tokens: those of the prompts, and those that answers are said to have at most.
  /// Throws as QuotaAccount::take().
  TokenCharge(std::shared_ptr<QuotaAccount> account, int64_t prompt_tokens, int64_t answer_tokens,
              int64_t now_ns);
  ~TokenCharge() { settle(); }
  TokenCharge(const TokenCharge&) = delete;
  TokenCharge& operator=(const TokenCharge&) = delete;

  /// Tokens that were made of it. Any thread.
  void spend(int64_t tokens) {
    spent_ += tokens;
    account_->count(tokens);
  }
  /// All answers are made: what they did not need goes back, so that who has them may ask again at once. The
  /// end of the charge settles too.
  void settle() {
    if (!is_settled_.exchange(true)) account_->give_back(reserved_ - spent_);
  }

 private:
  const std::shared_ptr<QuotaAccount> account_;
  const int64_t reserved_;  ///< for answers
  std::atomic<int64_t> spent_{0};
  std::atomic<bool> is_settled_{false};
};

}  // namespace trireme::serve
