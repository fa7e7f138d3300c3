// Sends pages of a prompt in the form that their files have.
#include "serve/generative/page_sender.h"

#include <utility>

#include "sched/current_error.h"

namespace trireme::serve {

bool PageSender::take(std::shared_ptr<const engine::PageBytes> page) {
  try {
    const auto number = static_cast<size_t>(next_++);
    if (number >= ids_.size()) return true;
    if (!reader_->on_page(engine::page_record(ids_[number], page->bytes()))) return false;
    metrics_.count_given(page->size);
    return true;
  } catch (const std::exception&) {
    return false;  // memory is short: the rest is computed by who asks
  }
}

void PageSender::on_end(engine::FinishReason reason) {
  if (reason == engine::FinishReason::expired)
    return reader_->on_error(base::Error(base::ErrorCode::unavailable, "Request timeout expired"));
  reader_->on_end();
}

}  // namespace trireme::serve
