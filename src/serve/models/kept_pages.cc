// The store in which a server's texts leave the pages of known prefixes.
#include "serve/models/kept_pages.h"

namespace trireme::serve {
namespace {

void register_counts(MetricRegistry& metrics, std::shared_ptr<const engine::PageStore> store) {
  using Count = int64_t engine::PageStoreCounts::*;
  const auto read = [&](Count count) {
    return [store, count] { return static_cast<double>(store->counts().*count); };
  };
  const auto pages = [&](const char* event, Count count) {
    metrics.counter_from(
        "trireme_text_stored_pages_total",
        "Pages of known beginnings between texts and the store: saved, loaded (hits), refused "
        "(damaged), dropped (no room on the way), deleted (for others)",
        {{"event", event}}, read(count));
  };
  pages("saved", &engine::PageStoreCounts::saved_pages);
  pages("loaded", &engine::PageStoreCounts::loaded_pages);
  pages("refused", &engine::PageStoreCounts::refused);
  pages("dropped", &engine::PageStoreCounts::dropped);
  pages("deleted", &engine::PageStoreCounts::deleted);
  const auto bytes = [&](const char* event, Count count) {
    metrics.counter_from("trireme_text_stored_bytes_total", "Bytes of such pages that were saved and loaded",
                         {{"event", event}}, read(count));
  };
  bytes("saved", &engine::PageStoreCounts::saved_bytes);
  bytes("loaded", &engine::PageStoreCounts::loaded_bytes);
  const auto kept = [&](const char* place, Count count) {
    metrics.gauge_from("trireme_text_stored_bytes", "Bytes of such pages that are kept", {{"place", place}},
                       read(count));
  };
  kept("host", &engine::PageStoreCounts::host_bytes);
  kept("disk", &engine::PageStoreCounts::disk_bytes);
}

}  // namespace

std::shared_ptr<engine::PageStore> open_page_store(const ServeOptions& options, MetricRegistry& metrics) {
  const KeptPages& kept = options.texts.kept;
  const int64_t host_bytes = options.device == "cpu" ? 0 : kept.cache_host.bytes;
  if (kept.cache_disk.empty() && host_bytes == 0) return nullptr;
  auto store = std::make_shared<engine::PageStore>(engine::PageStore::Options{
      .directory = kept.cache_disk, .disk_bytes = kept.cache_disk_limit.bytes, .host_bytes = host_bytes});
  register_counts(metrics, store);
  return store;
}

}  // namespace trireme::serve
