// A prompt whose pages a service would rather be given by another session, and who may be asked for them.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/decode/generator.h"

namespace trireme::sched {

/// Any thread. Ends once: with deliver(), or with withdraw() by who made it, behind which nobody is told.
class PageWish {
 public:
  using Done = std::function<void(std::shared_ptr<const engine::HandedPages>)>;
  struct Form {
    int64_t first = 0;  ///< pages of the prompt that are known already
    int64_t page_tokens = 0, page_bytes = 0;
  };

  PageWish(const engine::GenerateRequest& request, uint32_t priority, const Form& form, Done done);

  /// Of the prompt's full pages, but for its last token; the first `form().first` pages are not wanted.
  const std::vector<int64_t>& tokens() const { return tokens_; }
  /// Pages that are wanted.
  int64_t pages() const { return static_cast<int64_t>(tokens_.size()) / form_.page_tokens - form_.first; }
  const Form& form() const { return form_; }
  const std::shared_ptr<const engine::LoadedAdapter>& adapter() const { return adapter_; }
  const std::string& salt() const { return salt_; }
  uint32_t priority() const { return priority_; }
  /// Whether the pages are those of this request's prompt, too.
  bool fits(const engine::GenerateRequest& request) const;

  bool is_wanted() const { return !has_ended_.load(); }
  void withdraw();
  /// Gives the pages, from the first that is wanted on, as many as there are; null: none.
  void deliver(std::shared_ptr<const engine::HandedPages> pages);

 private:
  const Form form_;
  const std::vector<int64_t> tokens_;
  const std::shared_ptr<const engine::LoadedAdapter> adapter_;
  const std::string salt_;
  const uint32_t priority_;
  std::atomic<bool> has_ended_{false};
  std::mutex mutex_;
  Done done_;
};

/// Who has pages of prompts computed elsewhere. Any thread.
class PageSource {
 public:
  virtual ~PageSource() = default;
  /// Sees to a wish, and delivers at the latest when it ends itself. False: this one had better be computed
  /// by who asks.
  virtual bool ask(const std::shared_ptr<PageWish>& wish) = 0;
  /// How long an answer is waited for.
  virtual std::chrono::nanoseconds patience() const = 0;
  /// A wish was withdrawn because it took longer.
  virtual void count_late() = 0;
};

}  // namespace trireme::sched
