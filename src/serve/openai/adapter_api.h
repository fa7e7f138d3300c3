// Loading and unloading adapters while the server runs, as vLLM's clients ask for it.
#pragma once

#include <string_view>

#include "http/message.h"
#include "http/reply.h"
#include "serve/core/kserve_core.h"

namespace trireme::serve {

/// Answers POST /v1/load_lora_adapter {lora_name, lora_path} and /v1/unload_lora_adapter {lora_name}. A name
/// is MODEL:ADAPTER; the model may be left out where only one takes adapters. Any server thread; the
/// repository's does the work. Control calls: whoever routes here has judged the category model-repository.
class AdapterApi {
 public:
  explicit AdapterApi(KserveCore& core) : core_(core) {}

  static bool takes(std::string_view path);
  /// Errors become replies in the form of the OpenAI API.
  void handle(const http::Request& request, const Caller& caller, http::Reply reply) const;

 private:
  KserveCore& core_;
};

}  // namespace trireme::serve
