// Requests that the process asks itself: a handler answers them as it answers those of clients.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string_view>

#include "http/message.h"
#include "http/reply.h"

namespace trireme::http {

/// A request with no headers, as from this machine. Throws exhausted where the process may not use so much.
Request local_request(std::string_view method, std::string_view path, std::string_view body);

/// A sink that gives the whole answer to `take`, once, from any thread: pieces of a stream are gathered
/// first. One that is dropped unused, or whose stream breaks off, is a 500. Where `nobody_waits` becomes
/// true, it is as if the client had left; null: it stays.
Reply local_reply(std::function<void(Response&&)> take,
                  std::shared_ptr<const std::atomic<bool>> nobody_waits = nullptr);

}  // namespace trireme::http
