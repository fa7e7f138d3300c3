// A prompt whose pages are wanted from another session.
#include "sched/text/page_wish.h"

#include <algorithm>
#include <utility>

namespace trireme::sched {
namespace {

/// Tokens of the full pages of a prompt, but for its last token, which is run for what follows it.
ptrdiff_t full_tokens(const std::vector<int64_t>& prompt, int64_t page_tokens) {
  const auto tokens = static_cast<int64_t>(prompt.size());
  return tokens == 0 ? 0 : (tokens - 1) / page_tokens * page_tokens;
}

}  // namespace

PageWish::PageWish(const engine::GenerateRequest& request, uint32_t priority, const Form& form, Done done)
    : form_(form),
      tokens_(request.prompt.begin(), request.prompt.begin() + full_tokens(request.prompt, form.page_tokens)),
      adapter_(request.adapter),
      salt_(request.salt),
      priority_(priority),
      done_(std::move(done)) {}

bool PageWish::fits(const engine::GenerateRequest& request) const {
  const auto end = request.prompt.begin() + full_tokens(request.prompt, form_.page_tokens);
  return request.adapter == adapter_ && request.salt == salt_ &&
         std::equal(tokens_.begin(), tokens_.end(), request.prompt.begin(), end);
}

void PageWish::withdraw() {
  const std::lock_guard lock(mutex_);
  has_ended_ = true;
  done_ = nullptr;
}

void PageWish::deliver(std::shared_ptr<const engine::HandedPages> pages) {
  const std::lock_guard lock(mutex_);
  has_ended_ = true;
  if (const Done done = std::exchange(done_, nullptr)) done(std::move(pages));
}

}  // namespace trireme::sched
