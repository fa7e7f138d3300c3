// The rate at which one thread reads memory, for whoever holds a rate against the machine's limit.
#pragma once

#include <cstdint>
#include <span>

namespace trireme::base {

/// Reads all words as fast as a core does: as four streams, each asked for ahead of its use, because hardware
/// looks ahead only within a page. Returns their sum, so that no compiler leaves the reading out.
uint64_t read_through(std::span<const uint64_t> words);

}  // namespace trireme::base
