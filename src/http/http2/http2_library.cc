// Keeps the memory blocks of an nghttp2 session in a ring, so that they can be freed without the session.
#include "http/http2/http2_library.h"

#include <cstdlib>
#include <cstring>
#include <limits>

namespace trireme::http {

struct Http2Memory::Functions {
  static Http2Memory& self(void* user) { return *static_cast<Http2Memory*>(user); }
  static void* malloc(size_t bytes, void* user) { return self(user).take(nullptr, bytes); }
  static void free(void* block, void* user) { self(user).give(block); }
  static void* realloc(void* old, size_t bytes, void* user) { return self(user).take(old, bytes); }
  static void* calloc(size_t count, size_t bytes, void* user) {
    if (bytes > 0 && count > std::numeric_limits<size_t>::max() / bytes) return nullptr;
    void* block = self(user).take(nullptr, count * bytes);
    if (block != nullptr) std::memset(block, 0, count * bytes);
    return block;
  }
};

Http2Memory::Http2Memory()
    : functions_{this, Functions::malloc, Functions::free, Functions::calloc, Functions::realloc},
      blocks_{&blocks_, &blocks_} {}

Http2Memory::~Http2Memory() {
  while (blocks_.after != &blocks_) give(blocks_.after + 1);
}

void* Http2Memory::resize(void* old, size_t bytes) { return std::realloc(old, bytes); }

void* Http2Memory::take(void* old, size_t bytes) {
  Block* before = old == nullptr ? nullptr : static_cast<Block*>(old) - 1;
  void* room = bytes > std::numeric_limits<size_t>::max() - sizeof(Block)
                   ? nullptr
                   : resize(before, sizeof(Block) + bytes);
  if (room == nullptr) {
    has_failed_ = true;
    return nullptr;
  }
  auto* block = static_cast<Block*>(room);
  if (old == nullptr) {
    block->before = &blocks_;
    block->after = blocks_.after;
  }
  block->before->after = block;
  block->after->before = block;
  return block + 1;
}

void Http2Memory::give(void* block) {
  if (block == nullptr) return;
  Block* b = static_cast<Block*>(block) - 1;
  b->before->after = b->after;
  b->after->before = b->before;
  std::free(b);
}

}  // namespace trireme::http
