// Prompts read by other servers, which send the pages.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "http/client.h"
#include "sched/text/page_wish.h"
#include "serve/config/prefill_options.h"
#include "serve/generative/page_room.h"
#include "serve/models/preparing_threads.h"
#include "serve/seeing/hand_over_metrics.h"

namespace trireme::serve {

/// Asks for pages over HTTP (serve/pages/pages_api.h). Pages are named under a key drawn for each request, by
/// the model as this process runs it, the adapter's weights, the salt and the tokens: what another model,
/// program, machine or request would give has other names and is refused. Any thread.
class RemotePages final : public sched::PageSource {
 public:
  struct Model {
    std::string name;
    engine::PageId id{};  ///< engine::page_model()
    /// The name of an adapter of the model; empty: it has none any more.
    std::function<std::string(const engine::LoadedAdapter&)> adapter_name;
  };
  /// `options` have been checked. Throws invalid_argument where the header's ${NAME} is not set. `metrics`
  /// outlives it.
  RemotePages(Model model, const PrefillOptions& options, const HandOverMetrics& metrics);
  ~RemotePages() override;

  bool ask(const std::shared_ptr<sched::PageWish>& wish) override;
  std::chrono::nanoseconds patience() const override { return patience_; }
  void count_late() override { metrics_.count(Fallback::late); }
  /// Ends its threads; what is under way has been withdrawn.
  void stop() { threads_.stop(); }

 private:
  using Time = std::chrono::steady_clock::time_point;
  struct Peer {
    http::Url url;
    std::mutex mutex;  // of what follows
    std::vector<std::unique_ptr<http::Client>> idle;
    Time paused_until{};
  };
  /// A wish on its way through a thread.
  struct Task {
    std::shared_ptr<sched::PageWish> wish;
    std::shared_ptr<const PageRoom::Held> room;
    int64_t pages = 0;  ///< that there is room for
    Time asked = std::chrono::steady_clock::now();
  };
  void run(const Task& task);
  void take_in(const Task& task, const std::vector<engine::PageId>& ids, http::Received reply,
               std::optional<Fallback> broken);
  Peer* peer_for(const sched::PageWish& wish);
  http::Received exchange(Peer& peer, const Task& task, const std::string& body,
                          std::optional<Fallback>& broken);

  const Model model_;
  const std::string target_;
  http::HeaderList headers_;
  const int64_t least_tokens_;
  const std::chrono::nanoseconds patience_;
  const HandOverMetrics& metrics_;
  PageRoom room_;
  std::vector<std::unique_ptr<Peer>> peers_;
  PreparingThreads threads_;  ///< last: they use all
};

}  // namespace trireme::serve
