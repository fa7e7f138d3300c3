// Finds beginnings of texts whose pages are already known, so that they need not be computed.
#include "engine/decode/known_beginnings.h"

#include <algorithm>
#include <utility>

#include "base/files/file.h"
#include "base/machine/cpu_info.h"
#include "ir/graph.h"
#include "runtime/open_device.h"

namespace trireme::engine {
namespace {

constexpr std::chrono::seconds kLate{2};  // after that computing is better
constexpr std::chrono::milliseconds kMoment{10};

/// Adds everything about the machine and the program that results may depend on bit for bit.
void add_machine(base::KeyedHash& hash, const std::string& device) {
  if (runtime::kind_of_device(device) == tensor::DeviceKind::cpu) {
    const base::CpuInfo cpu = base::read_cpu_info();
    hash.add(cpu.model);
    for (const std::string& extension : cpu.isa) hash.add(extension);
  } else {
    hash.add(runtime::open_device(device)->describe());
  }
  const base::MappedFile program("/proc/self/exe");
  hash.add(program.text());
}

}  // namespace

PageId page_model(const ir::Graph& graph, const DecodeOptions& options) {
  base::KeyedHash hash(base::KeyedHash::Key{});
  hash.add(ir::print(graph));
  hash.add(static_cast<uint64_t>(options.strategy.precision.compute));
  hash.add(static_cast<uint64_t>(options.strategy.weights.weights));
  hash.add(static_cast<uint64_t>(options.strategy.weights.weight_group));
  hash.add(static_cast<uint64_t>(options.strategy.weights.weight_zeros));
  hash.add(static_cast<uint64_t>(options.strategy.weights.weight_rows));
  hash.add(static_cast<uint64_t>(options.strategy.weights.least_elements));
  hash.add(static_cast<uint64_t>(options.cache_type));
  hash.add(static_cast<uint64_t>(options.page_tokens));
  hash.add(static_cast<uint64_t>(options.max_adapters > 0));
  hash.add(static_cast<uint64_t>(options.strategy.tp));
  hash.add(static_cast<uint64_t>(options.strategy.pp));
  hash.add(static_cast<uint64_t>(options.strategy.kv_ranks));
  if (options.strategy.ep > 1) hash.add(static_cast<uint64_t>(options.strategy.ep));
  add_machine(hash, options.device);
  return hash.finish();
}

KnownBeginnings::KnownBeginnings(const DecodeOptions& options, DecodeRanks& ranks)
    : store_(options.store),
      names_(store_ != nullptr ? store_->key() : base::KeyedHash::random_key(), options.store_model),
      is_on_(options.share_prefixes),
      page_tokens_(options.page_tokens),
      ranks_(ranks),
      prefixes_(ranks.first().pool(), store_ != nullptr ? this : nullptr) {}

PageId KnownBeginnings::root(const TextOrigin& origin) const {
  return names_.root(origin.adapter == nullptr ? PageId{} : origin.adapter->fingerprint(), origin.salt);
}

std::span<const int32_t> KnownBeginnings::find(std::span<const int64_t> prompt, const PageId& root) {
  if (!is_on_ || prompt.empty()) return {};
  return prefixes_.find(prompt.first(prompt.size() - 1), root);
}

void KnownBeginnings::take(std::span<const int64_t> prompt, const PageId& root, std::vector<int32_t>& pages) {
  for (const int32_t page : find(prompt, root)) {
    ranks_.first().pool().share(page);
    pages.push_back(page);
  }
  const std::shared_ptr<const HandedPages> handed = std::exchange(offered_, nullptr);
  accepted_ = 0;
  if ((fetch_.load == nullptr && handed == nullptr) || !is_on_) return;
  const size_t known = pages.size();
  const std::span<const int64_t> beginning = prompt.first(prompt.size() - 1);
  const std::vector<PageId> ids = names_.of(root, beginning, page_tokens_);
  if (fetch_.load != nullptr) {
    const std::vector<int32_t> loaded = restore(std::span(ids).subspan(pages.size()));
    pages.insert(pages.end(), loaded.begin(), loaded.end());
  }
  if (handed != nullptr) {
    const std::vector<int32_t> given =
        accept(*handed, static_cast<int64_t>(pages.size()), static_cast<int64_t>(ids.size()));
    pages.insert(pages.end(), given.begin(), given.end());
    accepted_ = static_cast<int64_t>(given.size());
  }
  if (pages.size() > known) prefixes_.keep(beginning, pages, root, ids);
}

int64_t KnownBeginnings::reach(std::span<const int64_t> prompt, const TextOrigin& origin) {
  if (!is_on_ || prompt.empty()) return 0;
  const PageId from = root(origin);
  const auto here = static_cast<int64_t>(find(prompt, from).size());
  if (store_ == nullptr) return here;
  const std::vector<PageId> ids = names_.of(from, prompt.first(prompt.size() - 1), page_tokens_);
  const auto gap =
      std::find_if(ids.begin() + here, ids.end(), [&](const PageId& id) { return !store_->has(id); });
  return gap - ids.begin();
}

void KnownBeginnings::keep(std::span<const int64_t> tokens, std::span<const int32_t> pages,
                           const PageId& root) {
  if (!is_on_) return;
  if (store_ == nullptr) return prefixes_.keep(tokens, pages, root);
  const std::vector<PageId> ids = names_.of(root, tokens, page_tokens_);
  prefixes_.keep(tokens, pages, root, ids);
  if (!store_->saves_at_once()) return;
  for (size_t i = 0; i < std::min(pages.size(), ids.size()); ++i) save(pages[i], ids[i]);
}

int32_t KnownBeginnings::take_page() {
  KvPool& pool = ranks_.first().pool();
  if (pool.free_pages() == 0) prefixes_.give_up(1);
  return pool.take();
}

void KnownBeginnings::gives_up(int32_t page, const PageId& id) { save(page, id); }

void KnownBeginnings::save(int32_t page, const PageId& id) {
  if (store_->has(id) || !store_->takes(ranks_.page_bytes())) return;
  const auto content = std::make_shared<const PageBytes>(ranks_.page_bytes());
  ranks_.read_page(page, content->bytes());
  store_->save(id, content);
}

bool KnownBeginnings::fetch(int64_t number, std::span<const int64_t> prompt, const TextOrigin& origin) {
  if (store_ == nullptr || !is_on_ || prompt.empty()) return true;
  if (fetch_.number != number || fetch_.load == nullptr) {
    const PageId from = root(origin);
    const std::vector<PageId> ids = names_.of(from, prompt.first(prompt.size() - 1), page_tokens_);
    const auto unknown = std::span(ids).subspan(find(prompt, from).size());
    fetch_ = {.number = number, .load = store_->load(unknown, ranks_.page_bytes())};
    fetch_.late = std::chrono::steady_clock::now() + kLate;
  }
  if (fetch_.load == nullptr || fetch_.load->is_done()) return true;
  if (std::chrono::steady_clock::now() < fetch_.late) return false;
  fetch_.load = nullptr;
  return true;
}

void KnownBeginnings::wait() {
  if (fetch_.load != nullptr) fetch_.load->wait(kMoment);
}

/// Writes pages from number `known` up to `most` that another session computed to free pages, as long as
/// there are any, and holds these.
std::vector<int32_t> KnownBeginnings::accept(const HandedPages& handed, int64_t known, int64_t most) {
  std::vector<int32_t> pages;
  std::vector<const std::byte*> from;
  const auto count = static_cast<int64_t>(handed.pages.size());
  for (int64_t i = known - handed.first; i >= 0 && i < std::min(count, most - handed.first); ++i) {
    if (free_pages() == 0) break;
    pages.push_back(take_page());
    from.push_back(handed.pages[static_cast<size_t>(i)]);
  }
  if (!pages.empty()) ranks_.write_pages(pages, from);
  return pages;
}

/// Writes loaded pages among `ids` to free pages, as long as there are any, and holds these.
std::vector<int32_t> KnownBeginnings::restore(std::span<const PageId> ids) {
  const std::shared_ptr<PageLoad> load = std::exchange(fetch_.load, nullptr);
  if (!load->is_done()) return {};
  // Other texts may have computed some of the pages meanwhile, so the first loaded ones may be skipped.
  const auto& loaded = load->ids();
  const auto first = ids.empty() ? loaded.end() : std::find(loaded.begin(), loaded.end(), ids.front());
  const auto skipped = static_cast<size_t>(first - loaded.begin());
  std::vector<int32_t> pages;
  std::vector<const std::byte*> from;
  for (size_t i = 0; i < ids.size() && skipped + i < load->pages().size(); ++i) {
    if (loaded[skipped + i] != ids[i] || free_pages() == 0) break;
    pages.push_back(take_page());
    from.push_back(load->pages()[skipped + i]->bytes().data());
  }
  ranks_.write_pages(pages, from);
  return pages;
}

}  // namespace trireme::engine
