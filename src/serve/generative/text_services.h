// The sessions of one language model: the one that answers its texts, and those that read prompts for it.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "serve/generative/local_pages.h"
#include "serve/generative/remote_pages.h"
#include "serve/generative/served_adapters.h"
#include "serve/models/served_model.h"
#include "serve/models/text_model.h"

namespace trireme::serve {

/// Any thread.
class TextServices {
 public:
  struct Model {
    std::string name = {};
    engine::PageId id{};  ///< engine::page_model(); all 0: pages are not handed over between servers
    sched::TextService::MakeSession make = {}, make_prefill = {};
    int prefill_instances = 0;
    size_t max_waiting = 0;  ///< requests of clients that wait for answers; 0: the server's --max-queue
    sched::TextService::Options service = {};  ///< of the one that answers, but for what a host says
  };
  /// Makes the first session of each at once and throws what that throws. `adapters` and what `host` has
  /// outlive it.
  TextServices(Model model, const ServedAdapters& adapters, const ModelHost& host);
  ~TextServices();
  TextServices(const TextServices&) = delete;
  TextServices& operator=(const TextServices&) = delete;

  sched::TextService& answering() const { return *service_; }
  /// Has pages of a prompt read for another server, by an instance for prompts if there are any. Throws
  /// invalid_argument for tokens that are no whole pages, unsupported where pages are not given, unavailable
  /// where a step of each such instance hangs, and what TextService::submit() throws.
  void give_pages(const PagesRequest& asked, std::shared_ptr<const engine::LoadedAdapter> adapter,
                  std::shared_ptr<PageReader> reader);
  /// False while a step of the one that answers hangs: it takes longer than the server's --instance-timeout.
  bool is_well() const { return is_well(*service_); }
  int64_t memory_bytes() const;
  /// Returns when nothing waits or runs, but does not wait for a step that hangs.
  void drain();
  /// False where a step hangs: the services are never let go of then. Idempotent.
  bool stop();

 private:
  bool is_well(const sched::TextService& service) const {
    return step_timeout_ns_ == 0 || service.step_ns() < step_timeout_ns_;
  }
  void drain(sched::TextService& service) const;
  bool stop(sched::TextService& service);

  const engine::PageId model_id_;
  const int64_t step_timeout_ns_;
  const HandOverMetrics metrics_;
  bool is_abandoned_ = false;
  LocalPages::Instances prefill_;
  std::shared_ptr<LocalPages> local_;    ///< null: there are no instances for prompts
  std::shared_ptr<RemotePages> remote_;  ///< null: no other server is asked
  std::unique_ptr<sched::TextService> service_;
};

}  // namespace trireme::serve
