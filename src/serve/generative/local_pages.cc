// Has prompts read by other instances of a model.
#include "serve/generative/local_pages.h"

#include <utility>

namespace trireme::serve {
namespace {

using engine::FinishReason;
using engine::GenerateEvent;

/// Gathers the pages of one prompt. Its request draws one token, which nobody reads.
class PageGatherer final : public sched::TextListener, public engine::PageTaker {
 public:
  PageGatherer(std::shared_ptr<sched::PageWish> wish, std::shared_ptr<const PageRoom::Held> room,
               const HandOverMetrics& metrics)
      : wish_(std::move(wish)), metrics_(metrics), pages_(std::make_shared<Pages>()) {
    pages_->room = std::move(room);
  }

  int64_t next() const override {
    return wish_->form().first + static_cast<int64_t>(pages_->contents.size());
  }
  bool take(std::shared_ptr<const engine::PageBytes> page) override {
    pages_->contents.push_back(std::move(page));
    return wish_->is_wanted();
  }

  void on_begin(int64_t /*known_tokens*/) override {}
  bool on_token(const GenerateEvent& /*event*/) override { return true; }
  void on_end(FinishReason /*reason*/) override { end(); }
  void on_error(const base::Error& /*error*/) override {
    if (wish_->is_wanted()) metrics_.count(Fallback::failed);
    end();
  }
  bool is_gone() const override { return !wish_->is_wanted(); }

 private:
  struct Pages {
    std::vector<std::shared_ptr<const engine::PageBytes>> contents;
    std::shared_ptr<const PageRoom::Held> room;
  };

  void end() {
    if (!wish_->is_wanted()) return;
    if (pages_->contents.empty()) return wish_->deliver(nullptr);
    const int64_t ns = std::chrono::nanoseconds(std::chrono::steady_clock::now() - asked_).count();
    metrics_.count_pages(static_cast<int64_t>(pages_->contents.size()), wish_->form().page_bytes, ns);
    auto handed = std::make_shared<engine::HandedPages>();
    handed->first = wish_->form().first;
    for (const auto& page : pages_->contents) handed->pages.push_back(page->bytes().data());
    handed->owner = std::move(pages_);
    pages_ = std::make_shared<Pages>();
    wish_->deliver(std::move(handed));
  }

  const std::shared_ptr<sched::PageWish> wish_;
  const HandOverMetrics& metrics_;
  std::shared_ptr<Pages> pages_;
  const std::chrono::steady_clock::time_point asked_ = std::chrono::steady_clock::now();
};

}  // namespace

LocalPages::LocalPages(Instances instances, const PrefillOptions& options, const HandOverMetrics& metrics,
                       int64_t step_timeout_ns)
    : instances_(std::move(instances)),
      least_tokens_(options.prefill_least),
      patience_(options.prefill_timeout.ns),
      metrics_(metrics),
      step_timeout_ns_(step_timeout_ns),
      room_(options.prefill_room.bytes) {}

sched::TextService& LocalPages::idlest() const {
  sched::TextService* idlest = nullptr;
  size_t least = 0;
  for (const std::shared_ptr<sched::TextService>& instance : instances_) {
    if (hangs(*instance)) continue;
    const size_t texts = instance->stats().under_way;
    if (idlest != nullptr && texts >= least) continue;
    idlest = instance.get();
    least = texts;
  }
  if (idlest == nullptr)
    base::fail(base::ErrorCode::unavailable, "a step of every instance that reads prompts hangs");
  return *idlest;
}

bool LocalPages::ask(const std::shared_ptr<sched::PageWish>& wish) {
  const sched::PageWish::Form& form = wish->form();
  if (wish->pages() * form.page_tokens < least_tokens_) return false;
  const int64_t pages = room_.fit(wish->pages(), form.page_bytes);
  try {
    if (pages == 0) base::fail(base::ErrorCode::exhausted, "no room for pages");
    const auto gatherer = std::make_shared<PageGatherer>(wish, room_.take(pages, form.page_bytes), metrics_);
    engine::GenerateRequest request;
    request.prompt.assign(wish->tokens().begin(),
                          wish->tokens().begin() + (form.first + pages) * form.page_tokens);
    request.max_tokens = 1;
    request.adapter = wish->adapter();
    request.salt = wish->salt();
    request.taker = gatherer;
    idlest().submit(
        {.generate = std::move(request), .standing = {.priority = wish->priority()}, .listener = gatherer});
    return true;
  } catch (const base::Error&) {
    metrics_.count(Fallback::busy);
    return false;
  }
}

}  // namespace trireme::serve
