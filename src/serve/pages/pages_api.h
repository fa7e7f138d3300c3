// The port at which other servers ask for the pages of prompts.
#pragma once

#include "http/message.h"
#include "http/reply.h"
#include "serve/core/kserve_core.h"

namespace trireme::serve {

/// Answers POST /v2/models/NAME/pages (serve/models/pages_request.h) with the prompt's pages as their files
/// would be (engine/pages/handed_pages.h), in parts as they are computed. What is refused at once has a
/// status; where not all could be computed, the answer ends early. Rules for `inference` hold. Any server
/// thread.
class PagesApi {
 public:
  explicit PagesApi(const KserveCore& core) : core_(core) {}

  void handle(http::Request&& request, http::Reply reply) const;

 private:
  void give(const http::Request& request, const std::shared_ptr<http::Reply>& reply) const;

  const KserveCore& core_;
};

}  // namespace trireme::serve
