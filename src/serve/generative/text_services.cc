// The sessions of a language model.
#include "serve/generative/text_services.h"

#include <utility>

#include "http/reply.h"
#include "serve/generative/page_sender.h"

namespace trireme::serve {

TextServices::TextServices(Model model, const ServedAdapters& adapters, const ModelHost& host)
    : model_id_(model.id),
      step_timeout_ns_(host.options.runs.instance_timeout.ns),
      metrics_(host.metrics, model.name) {
  const PrefillOptions& prefill = host.options.texts.prefill;
  const auto max_waiting = static_cast<size_t>(host.options.max_queue);
  for (int i = 0; i < model.prefill_instances; ++i) {
    prefill_.push_back(std::make_shared<sched::TextService>(
        model.make_prefill, sched::TextService::Options{.max_waiting = max_waiting}, host.env.clock));
  }
  if (!prefill_.empty()) {
    local_ = std::make_shared<LocalPages>(prefill_, prefill, metrics_, step_timeout_ns_);
    model.service.pages = local_;
  } else if (!prefill.prefill_from.empty()) {
    const auto name_of = [&adapters](const engine::LoadedAdapter& a) { return adapters.name_of(a); };
    remote_ = std::make_shared<RemotePages>(
        RemotePages::Model{.name = model.name, .id = model_id_, .adapter_name = name_of}, prefill, metrics_);
    model.service.pages = remote_;
  }
  model.service.max_waiting = model.max_waiting > 0 ? model.max_waiting : max_waiting;
  model.service.goals = host.options.texts.goals;
  model.service.begin_telling = [] { return std::make_shared<http::HeldWakes>(); };
  service_ =
      std::make_unique<sched::TextService>(std::move(model.make), std::move(model.service), host.env.clock);
}

TextServices::~TextServices() {
  stop();
  if (!is_abandoned_) return;
  // What a step that hangs still uses stays.
  static_cast<void>(service_.release());
  static_cast<void>(new LocalPages::Instances(std::move(prefill_)));
}

void TextServices::give_pages(const PagesRequest& asked, std::shared_ptr<const engine::LoadedAdapter> adapter,
                              std::shared_ptr<PageReader> reader) {
  if (model_id_ == engine::PageId{}) base::fail_unsupported("this server gives no pages of prompts");
  const int64_t page_tokens = service_->limits().page_tokens;
  const auto tokens = static_cast<int64_t>(asked.tokens.size());
  base::require(tokens % page_tokens == 0 && asked.first < tokens / page_tokens, "pages of this model have ",
                page_tokens, " tokens: ", tokens, " tokens from page ", asked.first,
                " on are no whole pages");
  const engine::PageNames names(asked.key, model_id_);
  const engine::PageId root =
      names.root(adapter == nullptr ? engine::PageId{} : adapter->fingerprint(), asked.salt);
  const auto sender = std::make_shared<PageSender>(names.of(root, asked.tokens, page_tokens), asked.first,
                                                   std::move(reader), metrics_);
  engine::GenerateRequest request;
  request.prompt = asked.tokens;
  request.max_tokens = 1;  // nobody reads it
  request.adapter = std::move(adapter);
  request.salt = asked.salt;
  request.taker = sender;
  sched::TextService& service = local_ != nullptr ? local_->idlest() : *service_;
  service.submit({.generate = std::move(request),
                  .standing = {.priority = static_cast<uint32_t>(asked.priority)},
                  .listener = sender});
}

int64_t TextServices::memory_bytes() const {
  int64_t bytes = service_->memory_bytes();
  for (const auto& instance : prefill_) bytes += instance->memory_bytes();
  return bytes;
}

void TextServices::drain(sched::TextService& service) const {
  constexpr int64_t kLookNs = 100 * base::kNsPerMs;
  while (!service.drain(kLookNs) && is_well(service)) {
  }
}

void TextServices::drain() {
  drain(*service_);
  for (const auto& instance : prefill_) drain(*instance);
}

bool TextServices::stop(sched::TextService& service) {
  constexpr int64_t kPatienceNs = 2 * base::kNsPerSecond;
  return service.stop(is_well(service) ? INT64_MAX : kPatienceNs);
}

bool TextServices::stop() {
  bool has_stopped = stop(*service_);
  if (remote_ != nullptr) remote_->stop();
  for (const auto& instance : prefill_) has_stopped = stop(*instance) && has_stopped;
  is_abandoned_ = !has_stopped;
  return has_stopped;
}

}  // namespace trireme::serve
