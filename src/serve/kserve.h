// The KServe v2 routes over HTTP: which path and method does what.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/env.h"
#include "serve/http_message.h"
#include "serve/http_reply.h"
#include "serve/repository.h"

namespace trireme::serve {

/// Answers every path under /v2. Any server thread; nothing here blocks (loads answer later).
class KserveApi {
 public:
  /// `is_ready` says whether the server takes requests now (not while loading or draining).
  KserveApi(Repository& repository, const base::Env& env, std::function<bool()> is_ready);

  /// Throws base::Error for what becomes an error response.
  void handle(HttpRequest&& request, HttpReply reply) const;

 private:
  struct ModelPath;
  void handle_model(const ModelPath& path, HttpRequest&& request, HttpReply reply) const;
  void control(std::string_view rest, const HttpRequest& request, HttpReply reply) const;
  void infer(const ModelPath& path, HttpRequest&& request, HttpReply reply) const;
  HttpResponse answer(std::string_view path, std::string_view method, std::string_view body) const;
  HttpResponse index(std::string_view body) const;
  HttpResponse all_stats() const;

  Repository& repository_;
  base::Env env_;
  std::function<bool()> is_ready_;
};

}  // namespace trireme::serve
