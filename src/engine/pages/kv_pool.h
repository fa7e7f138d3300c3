// Memory for the keys and values of all sequences: pages in one arena, handed out and counted.
#pragma once

#include <memory>
#include <vector>

#include "tensor/device.h"
#include "tensor/dtype.h"

namespace trireme::engine {

/// What one token keeps.
struct KvLayout {
  struct Layer {
    int64_t kv_heads = 1;
    int64_t row = 1;  ///< elements of the key or value of a token and head, a scale among them
  };
  std::vector<Layer> layers;
  tensor::DType type = tensor::DType::f32;
  int64_t page_tokens = 16;

  /// Keys and values of all layers of one page.
  int64_t page_bytes() const;
};

/// Pages 0 .. count - 1. A page number means the same place in the keys and values of every layer. Several
/// sequences may hold a page; it is free again when all have let go. One owner thread; nothing allocates
/// after the constructor.
class KvPool {
 public:
  /// Throws exhausted, naming the bytes, if the device has no room.
  KvPool(tensor::Device& device, KvLayout layout, int64_t pages);

  int64_t pages() const { return static_cast<int64_t>(holders_.size()); }
  int64_t free_pages() const { return static_cast<int64_t>(free_.size()); }
  const KvLayout& layout() const { return layout_; }
  int64_t bytes() const { return pages() * layout_.page_bytes(); }
  /// [pages, kv_heads, page_tokens, row] of a layer, memory of the device.
  void* keys(size_t layer) const;
  void* values(size_t layer) const;

  /// A free page with one holder. Throws exhausted if there is none: ask free_pages() first.
  int32_t take();
  /// One more holder of a page that is held.
  void share(int32_t page);
  /// One holder less.
  void release(int32_t page);
  int holders(int32_t page) const { return holders_.at(static_cast<size_t>(page)); }
  /// Who is told of a page whose holders became more or less; null: nobody.
  class Watch {
   public:
    virtual ~Watch() = default;
    virtual void holders_changed(int32_t page) = 0;
  };
  void watch(Watch* watch) { watch_ = watch; }
  /// Grows whenever pages are taken, shared or released: what was counted before may differ then.
  uint64_t changes() const { return changes_; }
  /// Copies a page's keys and values of all layers, in stream order: before writing to a page that others
  /// hold too.
  void copy_page(int32_t from, int32_t to, tensor::Stream& stream);
  /// A page's keys and values, layer by layer [layout().page_bytes()], to the host or from there, in stream
  /// order: memory of the host that is left alone until the stream has done it.
  void read_page(int32_t page, std::byte* to, tensor::Stream& stream) const;
  void write_page(int32_t page, const std::byte* from, tensor::Stream& stream);

 private:
  int64_t layer_bytes(size_t layer) const;  // keys of one page
  void changed(int32_t page);

  KvLayout layout_;
  std::shared_ptr<void> memory_;
  std::vector<int64_t> offsets_;  // of each layer's keys; its values follow
  std::vector<int32_t> free_;     // the last is taken next
  std::vector<int> holders_;
  Watch* watch_ = nullptr;
  uint64_t changes_ = 0;
};

}  // namespace trireme::engine
