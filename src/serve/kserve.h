// The KServe v2 routes over HTTP: which path and method asks the core for what.
#pragma once

#include <string_view>

#include "serve/http_message.h"
#include "serve/http_reply.h"
#include "serve/kserve_core.h"

namespace trireme::serve {

/// Answers every path under /v2. Any server thread; nothing here blocks (loads answer later).
class KserveApi {
 public:
  explicit KserveApi(KserveCore& core) : core_(core) {}

  /// Throws base::Error for what becomes an error response.
  void handle(HttpRequest&& request, HttpReply reply) const;

 private:
  struct ModelPath;
  void handle_model(const ModelPath& path, HttpRequest&& request, HttpReply reply) const;
  void control(std::string_view rest, const HttpRequest& request, HttpReply reply) const;
  void generate(const ModelPath& path, HttpRequest&& request, HttpReply reply) const;
  void infer(const ModelPath& path, HttpRequest&& request, HttpReply reply) const;
  HttpResponse answer(std::string_view path, std::string_view method, std::string_view body) const;
  HttpResponse region_answer(std::string_view rest, std::string_view method, std::string_view body) const;

  KserveCore& core_;
};

}  // namespace trireme::serve
