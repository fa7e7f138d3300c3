// The OpenAI API.
#include "serve/openai/openai.h"

#include <algorithm>
#include <charconv>
#include <iomanip>
#include <sstream>
#include <utility>

#include "base/keyed_hash.h"
#include "serve/infer/request_json.h"
#include "serve/openai/completion_call.h"
#include "serve/openai/embedding_call.h"
#include "serve/openai/openai_error.h"

namespace trireme::serve {
namespace {

using base::Json;

constexpr std::string_view kModels = "/v1/models";
/// Bodies of more bytes are read by threads of their own: some milliseconds of tokenizing.
constexpr size_t kLongBody = 16 << 10, kMostLongRequests = 256;
/// No token of a published vocabulary is longer: a text of more bytes cannot fit, whatever is in it.
constexpr int64_t kLongestToken = 512;

enum class Path : uint8_t {
  other,
  models,
  model,
  completions,
  chat,
  embeddings,
  tokenize,
  detokenize,
  health,
  version
};

Path path_of(std::string_view path) {
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  if (path == kModels) return Path::models;
  if (path.starts_with(kModels) && path[kModels.size()] == '/') return Path::model;
  if (path == "/v1/completions") return Path::completions;
  if (path == "/v1/chat/completions") return Path::chat;
  if (path == "/v1/embeddings") return Path::embeddings;
  if (path == "/tokenize") return Path::tokenize;
  if (path == "/detokenize") return Path::detokenize;
  if (path == "/health" || path == "/ping") return Path::health;
  return path == "/version" ? Path::version : Path::other;
}

bool is_get(Path path) {
  return path == Path::models || path == Path::model || path == Path::health || path == Path::version;
}

Category category_of(Path path) {
  if (path == Path::health) return Category::health;
  return is_get(path) ? Category::metadata : Category::inference;
}

std::string hexadecimal(uint64_t number) {
  std::ostringstream out;
  out << std::hex << std::setw(16) << std::setfill('0') << number;
  return std::move(out).str();
}

http::Response ok_json(const Json& json) { return http::json_response(200, json.dump()); }

/// A header that holds a whole number; 0: there is none. Throws invalid_argument for anything else.
uint64_t number_of(const http::Request& request, std::string_view header) {
  const std::string_view text = request.header(header);
  if (text.empty()) return 0;
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  base::require(error == std::errc() && end == text.data() + text.size() && value <= INT32_MAX, "header ",
                header, ": '", text.substr(0, 40), "' is no whole number in range");
  return value;
}

Json ids_of(const std::vector<int64_t>& tokens) {
  Json list = Json::array();
  for (int64_t id : tokens) list.push_back(id);
  return list;
}

Json object_of(const http::Request& request) {
  Json json = request_json(request.body.view());
  base::require(json.is_object(), "expected a JSON object, found ", json.type_name());
  return json;
}

std::string text_member(const Json& json, std::string_view name) {
  const Json* member = json.find(name);
  if (member == nullptr || !member->is_string())
    throw MemberError(base::ErrorCode::invalid_argument, std::string(name), "expected a string");
  return member->as_string();
}

/// Throws for a text that is longer than any prompt of the model, before it costs time.
const std::string& require_size(const std::string& text, const TextModel& model) {
  base::require(static_cast<int64_t>(text.size() / kLongestToken) < model.max_length(), "the prompt has ",
                text.size(), " bytes, and the model takes ", model.max_length(), " tokens");
  return text;
}

}  // namespace

OpenAiApi::OpenAiApi(KserveCore& core)
    : core_(core), first_number_(base::KeyedHash::random_key()[0]), long_requests_(1, kMostLongRequests) {}

bool OpenAiApi::takes(std::string_view path) {
  return path_of(path) != Path::other || path.starts_with("/v1/");
}

int64_t OpenAiApi::next_seed() const {
  constexpr uint64_t kOdd = 0x9E3779B97F4A7C15;  // numbers that follow each other share no bits
  return static_cast<int64_t>((first_number_ + ++numbers_ * kOdd) >> 1);
}

void OpenAiApi::handle(http::Request&& request, http::Reply reply) const {
  const Path path = path_of(request.path);
  try {
    if (path == Path::other) return reply.send(openai_error(404, "Not Found"));
    if (is_get(path) ? request.method != "GET" && request.method != "HEAD" : request.method != "POST") {
      http::Response refusal = openai_error(405, "Method Not Allowed");
      refusal.headers.emplace_back("Allow", is_get(path) ? "GET" : "POST");
      return reply.send(std::move(refusal));
    }
    if (request.body.size() <= kLongBody) return run(request, std::move(reply));
    struct Long {
      http::Request request;
      http::Reply reply;
    };
    const auto given = std::make_shared<Long>(Long{std::move(request), std::move(reply)});
    try {
      long_requests_.submit([this, given] { run(given->request, std::move(given->reply)); });
    } catch (const base::Error& error) {
      given->reply.send(openai_error(error));
    }
  } catch (const base::Error& error) {
    reply.send(openai_error(error));
  }
}

/// Tells all errors by the reply.
void OpenAiApi::run(const http::Request& request, http::Reply reply) const {
  const Path path = path_of(request.path);
  if (path == Path::completions || path == Path::chat) return complete(request, std::move(reply));
  if (path == Path::embeddings) return embed(request, std::move(reply));
  try {
    reply.send(answer(request));
  } catch (const base::Error& error) {
    reply.send(openai_error(error));
  }
}

http::Response OpenAiApi::answer(const http::Request& request) const {
  const Path path = path_of(request.path);
  if (path == Path::health) {
    return core_.is_ready() ? http::text_response(200, "") : openai_error(503, "the server is not ready");
  }
  const Caller caller{.header = [&](const std::string& name) { return request.header(name); }};
  if (core_.rules().judge_before_reading(category_of(path), caller) != Access::allowed)
    return openai_error(401, "Unauthorized", "invalid_api_key");
  switch (path) {
    case Path::models: return ok_json(models());
    case Path::model: {
      const std::string name = http::percent_decode(request.path.substr(kModels.size() + 1));
      try {
        return ok_json(model_of(*find(name, request).served));
      } catch (const base::Error& error) {
        if (error.code() != base::ErrorCode::not_found) throw;
        return openai_error(404, error.message(), "model_not_found");
      }
    }
    case Path::version: return ok_json(Json::object({{"version", core_.server_metadata().at("version")}}));
    case Path::tokenize: return ok_json(tokenize(request));
    case Path::detokenize: return ok_json(detokenize(request));
    default: return openai_error(404, "Not Found");
  }
}

/// A model that continues texts. Throws not_found for another one, in the words clients look for.
OpenAiApi::Found OpenAiApi::find(const std::string& name, const http::Request& request) const {
  const Caller caller{.header = [&](const std::string& header) { return request.header(header); }};
  const bool is_allowed =
      core_.rules().judge(category_of(path_of(request.path)), name, caller) == Access::allowed;
  std::shared_ptr<ServedModel> served = is_allowed ? core_.find(name, "") : nullptr;
  TextModel* texts = served ? served->texts() : nullptr;
  if (texts == nullptr)
    base::fail(base::ErrorCode::not_found, "The model `", name, "` does not exist or continues no texts");
  return {std::move(served), *texts};
}

Json OpenAiApi::model_of(const ServedModel& model) const {
  return Json::object({{"id", model.name()},
                       {"object", "model"},
                       {"created", core_.started_s()},
                       {"owned_by", "trireme"},
                       {"root", model.name()},
                       {"parent", Json()},
                       {"max_model_len", const_cast<ServedModel&>(model).texts()->max_length()}});
}

Json OpenAiApi::models() const {
  Json list = Json::array();
  for (const std::shared_ptr<ServedModel>& model : core_.serving()) {
    if (model->texts() != nullptr) list.push_back(model_of(*model));
  }
  return Json::object({{"object", "list"}, {"data", std::move(list)}});
}

Json OpenAiApi::tokenize(const http::Request& request) const {
  const Json json = object_of(request);
  const Found model = find(text_member(json, "model"), request);
  const std::string prompt = text_member(json, "prompt");
  const std::vector<int64_t> tokens = model.texts.tokenizer().encode(require_size(prompt, model.texts),
                                                                     json.get_or("add_special_tokens", true));
  return Json::object(
      {{"count", tokens.size()}, {"max_model_len", model.texts.max_length()}, {"tokens", ids_of(tokens)}});
}

Json OpenAiApi::detokenize(const http::Request& request) const {
  const Json json = object_of(request);
  const Found model = find(text_member(json, "model"), request);
  const Json* list = json.find("tokens");
  if (list == nullptr || !list->is_array())
    throw MemberError(base::ErrorCode::invalid_argument, "tokens", "expected a list of tokens");
  std::vector<int64_t> tokens;
  for (const Json& id : list->as_array()) {
    tokens.push_back(id.as_int());
    base::require(tokens.back() >= 0 && tokens.back() < model.texts.tokenizer().vocabulary_size(),
                  "tokens: ", tokens.back(), " is not in the vocabulary");
  }
  return Json::object({{"prompt", model.texts.tokenizer().decode(tokens)}});
}

std::vector<std::vector<int64_t>> OpenAiApi::prompts_of(const CompletionRequest& asked,
                                                        TextModel& model) const {
  std::vector<std::vector<int64_t>> prompts;
  if (asked.is_chat) {
    Chat chat = asked.chat;
    chat.options.now_s = core_.wall_s();
    const std::string text = model.chat_prompt(chat);
    prompts.push_back(model.tokenizer().encode(require_size(text, model), false));
    return prompts;
  }
  for (const Prompt& prompt : asked.prompts) {
    const auto* text = std::get_if<std::string>(&prompt);
    prompts.push_back(text == nullptr ? std::get<std::vector<int64_t>>(prompt)
                                      : model.tokenizer().encode(require_size(*text, model)));
  }
  return prompts;
}

void OpenAiApi::complete(const http::Request& request, http::Reply reply) const {
  const Caller caller{.header = [&](const std::string& name) { return request.header(name); }};
  if (core_.rules().judge_before_reading(Category::inference, caller) != Access::allowed)
    return reply.send(openai_error(401, "Unauthorized", "invalid_api_key"));
  std::shared_ptr<CompletionCall> call;
  std::vector<std::vector<int64_t>> prompts;
  const bool is_chat = path_of(request.path) == Path::chat;
  const std::string_view body = request.body.view();
  try {
    CompletionRequest asked =
        is_chat ? chat_request(body, next_seed()) : completion_request(body, next_seed());
    Found model = find(asked.model, request);
    if (core_.tenants().names_by_header())
      asked.ask.tenant = std::string(request.header(core_.tenants().header()));
    if (asked.ask.priority == 0) asked.ask.priority = number_of(request, "x-priority");
    asked.ask.timeout_us = number_of(request, "x-timeout-ms") * 1000;
    asked.ask.received_ns = request.received_ns;
    prompts = prompts_of(asked, model.texts);
    if (!asked.has_most_tokens) asked.ask.generate.max_tokens = model.texts.max_length();
    const CompletionCall::Origin origin{.id = hexadecimal(static_cast<uint64_t>(next_seed())),
                                        .created = core_.wall_s(),
                                        .keeps = model.served};
    call =
        std::make_shared<CompletionCall>(std::move(asked), std::move(reply), model.texts.tokenizer(), origin);
    call->start(model.texts, prompts);
  } catch (const base::Error& error) {
    if (call) throw;  // it has the reply, and tells its errors itself
    const bool is_unknown = error.code() == base::ErrorCode::not_found;
    reply.send(is_unknown ? openai_error(404, error.message(), "model_not_found") : openai_error(error));
  }
}

void OpenAiApi::embed(const http::Request& request, http::Reply reply) const {
  const Caller caller{.header = [&](const std::string& name) { return request.header(name); }};
  const auto shared = std::make_shared<http::Reply>(std::move(reply));
  try {
    if (core_.rules().judge_before_reading(Category::inference, caller) != Access::allowed)
      return shared->send(openai_error(401, "Unauthorized", "invalid_api_key"));
    EmbeddingRequest asked = embedding_request(request.body.view());
    const bool is_allowed = core_.rules().judge(Category::inference, asked.model, caller) == Access::allowed;
    if (!is_allowed) base::fail(base::ErrorCode::not_found, "The model `", asked.model, "` does not exist");
    asked.priority = number_of(request, "x-priority");
    asked.timeout_us = number_of(request, "x-timeout-ms") * 1000;
    if (core_.tenants().names_by_header())
      asked.tenant = std::string(request.header(core_.tenants().header()));
    asked.received_ns = request.received_ns;
    asked.begun_ns = request.begun_ns;
    const std::shared_ptr<ServedModel> model = core_.find(asked.model, "");
    serve::embed(core_, model, std::move(asked), shared);
  } catch (const base::Error& error) {
    const bool is_unknown = error.code() == base::ErrorCode::not_found;
    shared->send(is_unknown ? openai_error(404, error.message(), "model_not_found") : openai_error(error));
  }
}

}  // namespace trireme::serve
