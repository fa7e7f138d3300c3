// The KServe v2 routes over HTTP: which path and method asks the core for what.
#pragma once

#include <string>
#include <string_view>

#include "http/message.h"
#include "http/reply.h"
#include "serve/core/kserve_core.h"

namespace trireme::serve {

/// Answers every path under /v2. Any server thread; nothing here blocks (loads answer later).
class KserveApi {
 public:
  explicit KserveApi(KserveCore& core) : core_(core) {}

  /// Throws base::Error for what becomes an error response.
  void handle(http::Request&& request, http::Reply reply) const;

 private:
  struct ModelPath;
  struct RegionPath;
  void handle_model(const ModelPath& path, http::Request&& request, http::Reply reply) const;
  void control(std::string_view rest, const http::Request& request, http::Reply reply) const;
  void generate(const ModelPath& path, http::Request&& request, http::Reply reply) const;
  void infer(const ModelPath& path, http::Request&& request, http::Reply reply) const;
  http::Response answer(std::string_view path, std::string_view method, std::string_view body) const;
  http::Response region_answer(RegionPath at, const http::Request& request) const;
  std::string tenant_of(const http::Request& request) const;

  KserveCore& core_;
};

}  // namespace trireme::serve
