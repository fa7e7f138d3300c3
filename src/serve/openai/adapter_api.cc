// Loads and unloads adapters while the server runs.
#include "serve/openai/adapter_api.h"

#include <memory>
#include <optional>
#include <string>

#include "serve/infer/request_json.h"
#include "serve/models/text_model.h"
#include "serve/openai/openai_error.h"

namespace trireme::serve {
namespace {

using base::Json;

constexpr std::string_view kLoad = "/v1/load_lora_adapter", kUnload = "/v1/unload_lora_adapter";

std::string_view without_slashes(std::string_view path) {
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  return path;
}

std::string needed_text(const Json& body, const char* name) {
  const Json* member = body.find(name);
  if (member == nullptr || !member->is_string() || member->as_string().empty())
    throw MemberError(base::ErrorCode::invalid_argument, name, "expected a string");
  return member->as_string();
}

/// The only model that takes adapters, for names that do not state a model.
std::string only_model(const KserveCore& core) {
  std::string found;
  for (const std::shared_ptr<ServedModel>& model : core.serving()) {
    if (model->texts() == nullptr || !model->texts()->takes_adapters()) continue;
    base::require(found.empty() || found == model->name(),
                  "lora_name: say MODEL:ADAPTER, several models take ", "adapters: ", found, ", ",
                  model->name());
    found = model->name();
  }
  base::require(!found.empty(), "no model takes adapters: start the server with --max-adapters");
  return found;
}

}  // namespace

bool AdapterApi::takes(std::string_view path) {
  path = without_slashes(path);
  return path == kLoad || path == kUnload;
}

void AdapterApi::handle(const http::Request& request, const Caller& caller, http::Reply reply) const {
  const bool loads = without_slashes(request.path) == kLoad;
  const auto shared = std::make_shared<http::Reply>(std::move(reply));
  try {
    if (request.method != "POST") {
      http::Response refusal = openai_error(405, "Method Not Allowed");
      refusal.headers.emplace_back("Allow", "POST");
      return shared->send(std::move(refusal));
    }
    const Json body = request_json(request.body.view());
    base::require(body.is_object(), "expected a JSON object, found ", body.type_name());
    const std::string name = needed_text(body, "lora_name");
    const ModelName parts = split_model_name(name);
    const bool says_model = parts.base.size() != name.size();
    AdapterChange change{.model = says_model ? std::string(parts.base) : only_model(core_),
                         .adapter = std::string(says_model ? parts.adapter : parts.base),
                         .path = loads ? needed_text(body, "lora_path") : ""};
    const Access access = core_.rules().judge(Category::model_repository, change.model, caller);
    if (access != Access::allowed)
      return shared->send(openai_error(
          403, base::concat("This API is ", AccessRules::refusal(Category::model_repository, access))));
    const std::string done_text = base::concat("Success: LoRA adapter '", name,
                                               loads ? "' added successfully." : "' removed successfully.");
    core_.change_adapter(std::move(change), [shared, done_text](const std::optional<base::Error>& error) {
      shared->send(error ? openai_error(*error) : http::text_response(200, done_text));
    });
  } catch (const base::Error& error) {
    shared->send(openai_error(error));  // refused before it was queued, so the reply is still unused
  }
}

}  // namespace trireme::serve
