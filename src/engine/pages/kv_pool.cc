// Memory for the keys and values of all sequences.
#include "engine/pages/kv_pool.h"

namespace trireme::engine {

int64_t KvLayout::page_bytes() const {
  int64_t bytes = 0;
  for (const Layer& l : layers) bytes += 2 * tensor::bytes_of(type, l.kv_heads * page_tokens * l.row);
  return bytes;
}

KvPool::KvPool(tensor::Device& device, KvLayout layout, int64_t pages) : layout_(std::move(layout)) {
  base::require(pages > 0 && pages * layout_.page_tokens <= INT32_MAX, "a pool of ", pages, " pages of ",
                layout_.page_tokens, " tokens");
  // The keys and values of each layer start at a multiple of this.
  constexpr int64_t kLine = 256;
  int64_t total = 0;
  for (size_t i = 0; i < layout_.layers.size(); ++i) {
    offsets_.push_back(total);
    total += 2 * ((layer_bytes(i) * pages + kLine - 1) / kLine * kLine);
  }
  try {
    memory_ = device.allocate(total);
  } catch (const base::Error& e) {
    throw e.with(
        base::concat("keys and values of ", pages * layout_.page_tokens, " tokens, ", total, " bytes"));
  }
  holders_.assign(static_cast<size_t>(pages), 0);
  free_.reserve(holders_.size());
  for (int64_t page = pages - 1; page >= 0; --page) free_.push_back(static_cast<int32_t>(page));
}

int64_t KvPool::layer_bytes(size_t layer) const {
  const KvLayout::Layer& l = layout_.layers.at(layer);
  return tensor::bytes_of(layout_.type, l.kv_heads * layout_.page_tokens * l.row);
}

void* KvPool::keys(size_t layer) const { return static_cast<std::byte*>(memory_.get()) + offsets_.at(layer); }

void* KvPool::values(size_t layer) const {
  constexpr int64_t kLine = 256;
  return static_cast<std::byte*>(keys(layer)) + (layer_bytes(layer) * pages() + kLine - 1) / kLine * kLine;
}

int32_t KvPool::take() {
  if (free_.empty()) {
    base::fail(base::ErrorCode::exhausted, "no page for keys and values is free; pages: ", pages(), " of ",
               layout_.page_tokens, " tokens");
  }
  const int32_t page = free_.back();
  free_.pop_back();
  holders_[static_cast<size_t>(page)] = 1;
  changed(page);
  return page;
}

void KvPool::share(int32_t page) {
  base::check(holders(page) > 0, "page ", page, " is shared though nobody holds it");
  ++holders_[static_cast<size_t>(page)];
  changed(page);
}

void KvPool::release(int32_t page) {
  base::check(holders(page) > 0, "page ", page, " is released though nobody holds it");
  if (--holders_[static_cast<size_t>(page)] == 0) free_.push_back(page);
  changed(page);
}

void KvPool::changed(int32_t page) {
  ++changes_;
  if (watch_ != nullptr) watch_->holders_changed(page);
}

void KvPool::read_page(int32_t page, std::byte* to, tensor::Stream& stream) const {
  for (size_t i = 0; i < layout_.layers.size(); ++i) {
    const int64_t bytes = layer_bytes(i);
    for (const void* place : {keys(i), values(i)}) {
      stream.download(to, static_cast<const std::byte*>(place) + page * bytes, bytes);
      to += bytes;
    }
  }
}

void KvPool::write_page(int32_t page, const std::byte* from, tensor::Stream& stream) {
  for (size_t i = 0; i < layout_.layers.size(); ++i) {
    const int64_t bytes = layer_bytes(i);
    for (void* place : {keys(i), values(i)}) {
      stream.upload(static_cast<std::byte*>(place) + page * bytes, from, bytes);
      from += bytes;
    }
  }
}

void KvPool::copy_page(int32_t from, int32_t to, tensor::Stream& stream) {
  for (size_t i = 0; i < layout_.layers.size(); ++i) {
    const int64_t bytes = layer_bytes(i);
    for (void* place : {keys(i), values(i)}) {
      auto* at = static_cast<std::byte*>(place);
      stream.copy(at + to * bytes, at + from * bytes, bytes);
    }
  }
}

}  // namespace trireme::engine
