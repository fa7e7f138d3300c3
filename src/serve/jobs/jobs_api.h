// Files and batches of the OpenAI API over HTTP.
#pragma once

#include <set>
#include <string>
#include <string_view>

#include "batch/state/posix_file.h"
#include "http/message.h"
#include "http/reply.h"
#include "serve/config/files_options.h"
#include "serve/core/kserve_core.h"
#include "serve/jobs/batches.h"
#include "serve/jobs/file_store.h"
#include "serve/models/preparing_threads.h"
#include "serve/openai/openai.h"

namespace trireme::serve {

/// Answers /v1/files, /v1/files/ID, /v1/files/ID/content, /v1/batches, /v1/batches/ID and
/// /v1/batches/ID/cancel. Any server thread; disks are asked by a thread of its own.
class JobsApi {
 public:
  /// `options` say where files and batches are kept. The others outlive it. Throws unavailable where another
  /// server has the directory.
  JobsApi(const FilesOptions& options, const KserveCore& core, const OpenAiApi& api, const base::Env& env);

  /// True for the paths above.
  static bool takes(std::string_view path);
  /// Errors become replies in the form of the OpenAI API.
  void handle(http::Request&& request, http::Reply reply);
  /// Goes on with batches of an earlier server; call it once models are there.
  void start() { batches_.start(); }
  /// Batches under way go on at the next start.
  void stop();

 private:
  http::Response answer(const http::Request& request);
  http::Response files(const http::Request& request, std::string_view rest);
  http::Response batches(const http::Request& request, std::string_view rest);
  http::Response upload(const http::Request& request);
  http::Response content(const std::string& id, const std::string& tenant) const;
  http::Response create(const http::Request& request);
  std::set<std::string> models_of(const http::Request& request, const BatchRecord& wanted) const;
  std::string tenant_of(const http::Request& request) const;

  const KserveCore& core_;
  const batch::PosixFile lock_;  ///< held as long as this lives: one server has the directory
  FileStore files_;
  Batches batches_;
  PreparingThreads threads_;  ///< last: they use the others
};

}  // namespace trireme::serve
