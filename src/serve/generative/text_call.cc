// One answer of a language model.
#include "serve/generative/text_call.h"

#include <algorithm>
#include <utility>

namespace trireme::serve {

using base::Error;
using base::ErrorCode;
using engine::FinishReason;

namespace {

/// Of a prompt as tokens, once in the queue and once as the text so far; with their chances where they are
/// scored. And of what each answer holds beside it: what ends it, and its salt.
int64_t asked_bytes(const TextAsk& ask) {
  const engine::GenerateRequest& request = ask.generate;
  size_t each = 2 * sizeof(int64_t);
  if (request.scores_prompt)
    each +=
        sizeof(engine::ScoredToken) + static_cast<size_t>(request.likeliest) * sizeof(engine::TokenChance);
  size_t bytes = each * request.prompt.size() + sizeof(int64_t) * request.stop.size() + request.salt.size();
  for (const std::string& stop : ask.stop) bytes += stop.size();
  return static_cast<int64_t>(bytes);
}

}  // namespace

TextCall::TextCall(const Host& host, const TextAsk& ask, std::shared_ptr<TextReader> reader, bool counts)
    : host_(host),
      room_(base::MemoryUse::bodies, asked_bytes(ask)),
      reader_(std::move(reader)),
      charge_(ask.charge),
      counts_(counts),
      answer_(host.tokenizer, ask.stop, ask.generate.least_tokens) {
  times_.received_ns = ask.received_ns;
  end_.prompt_tokens = static_cast<int64_t>(ask.generate.prompt.size());
}

sched::Timing TextCall::timing() const {
  return {.enqueued_ns = times_.received_ns,
          .started_ns = times_.begun_ns,
          .computed_ns = times_.begun_ns,
          .finished_ns = times_.last_ns,
          .batch_rows = 1,
          .padded_rows = 1,
          .own_rows = 1,
          .instance = -1};  // steps are what it is busy with, and they have many texts
}

void TextCall::on_begin(int64_t known_tokens) {
  end_.known_tokens = known_tokens;
  times_.begun_ns = std::max(times_.begun_ns, times_.received_ns);
  times_.first_ns = times_.last_ns = host_.clock.now_ns();
  host_.metrics.count_begin(times_);
}

bool TextCall::on_token(const engine::GenerateEvent& event) {
  if (event.token < 0) {
    reader_->on_piece({.text = {}, .prompt = event.prompt});
    return true;
  }
  const int64_t now_ns = host_.clock.now_ns();
  if (charge_) charge_->spend(1);
  if (end_.answer_tokens++ == 0) {
    times_.first_ns = now_ns;
    host_.metrics.count_first_token(times_);
    if (counts_) host_.model.metrics()->count_first_response(now_ns - times_.received_ns);
  } else {
    host_.metrics.count_token_after(now_ns - times_.last_ns);
  }
  times_.last_ns = now_ns;
  const std::string text = answer_.push(event.token);
  reader_->on_piece({.text = text,
                     .token = event.token,
                     .log_probability = event.log_probability,
                     .likeliest = event.likeliest,
                     .prompt = event.prompt});
  if (!answer_.is_stopped()) return true;
  finish(FinishReason::stop);
  return false;
}

void TextCall::on_end(FinishReason reason) {
  if (reason == FinishReason::cancelled)
    return fail(Error(ErrorCode::unavailable, "the client left"), sched::Ending::cancelled);
  if (reason == FinishReason::expired)
    return fail(Error(ErrorCode::unavailable, "Request timeout expired"), sched::Ending::expired);
  const std::string rest = answer_.finish();
  if (!rest.empty()) reader_->on_piece({.text = rest});
  finish(reason);
}

void TextCall::finish(FinishReason reason) {
  end_.reason = reason;
  host_.metrics.count_end(times_, reason, end_.prompt_tokens, end_.answer_tokens);
  const sched::Timing timing = this->timing();
  host_.model.metrics()->count_batch(timing);
  if (counts_) {
    const int64_t now_ns = host_.clock.now_ns();
    host_.model.metrics()->count_success(timing, times_.received_ns, now_ns,
                                         host_.clock.wall_ns() / base::kNsPerMs);
    host_.model.tenants().count(tenant_.number, timing, sched::Ending::done, now_ns - times_.received_ns);
  }
  reader_->on_end(end_);
}

void TextCall::on_error(const Error& error) {
  fail(error, error.code() == ErrorCode::unavailable ? sched::Ending::refused : sched::Ending::failed);
}

void TextCall::count_refusal() const {
  host_.metrics.count_abort();
  if (counts_)
    host_.model.metrics()->count_failure(sched::Ending::refused, times_.received_ns, host_.clock.now_ns());
}

void TextCall::fail(const Error& error, sched::Ending ending) {
  host_.metrics.count_abort();
  if (counts_) {
    host_.model.metrics()->count_failure(ending, times_.received_ns, host_.clock.now_ns());
    host_.model.tenants().count(tenant_.number, timing(), ending, 0);
  }
  reader_->on_error(error);
}

}  // namespace trireme::serve
