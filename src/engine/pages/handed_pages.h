// Pages of a prompt on their way from the session that computes them to another one that goes on with it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/pages/page_store.h"

namespace trireme::engine {

/// What a session is given of a prompt's beginning. That they are its pages is the giver's matter.
struct HandedPages {
  int64_t first = 0;                         ///< the number of the first of them, in the prompt
  std::vector<const std::byte*> pages = {};  ///< one behind another, each of DecodeRanks::page_bytes()
  std::shared_ptr<const void> owner = {};    ///< of their memory
};

/// Who is given the full pages of a prompt as its session computes them, in their order. Told on the
/// session's thread, between steps. Throws nothing.
class PageTaker {
 public:
  virtual ~PageTaker() = default;
  /// The number of the page that is wanted next.
  virtual int64_t next() const = 0;
  /// Takes that page. False: no more is wanted, and the text ends.
  virtual bool take(std::shared_ptr<const PageBytes> page) = 0;
};

/// A page as it travels: the head and content that its file would have.
std::string page_record(const PageId& id, std::span<const std::byte> content);
/// The contents of the records that `bytes` begins with: of `ids`, in their order, each of `page_bytes`, up
/// to the first that is not whole or not that page. They lie within `bytes`.
std::vector<const std::byte*> page_records(std::span<const std::byte> bytes, std::span<const PageId> ids,
                                           int64_t page_bytes);

}  // namespace trireme::engine
