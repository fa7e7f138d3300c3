// The routes of the OpenAI API.
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
#include "serve/openai/list_query.h"
#include "serve/openai/openai_error.h"
#include "serve/openai/responses_call.h"
#include "serve/openai/score_request.h"

namespace trireme::serve {
namespace {

using base::Json;

constexpr std::string_view kModels = "/v1/models", kResponses = "/v1/responses";
/// Longer bodies are handled by other threads, because tokenizing them takes milliseconds.
constexpr size_t kLongBody = 16 << 10, kMostLongRequests = 256;
/// Words in bodies that ask for a form of answers; the last one for bodies that spell such a word with
/// escapes. Other bodies may contain them, too.
constexpr std::string_view kFormWords[] = {"response_format", "structured_outputs", "guided_", "tool_choice",
                                           "json_schema",     "json_object",        "\\u00"};
/// No token of a published vocabulary is longer: a text of more bytes per token cannot fit.
constexpr int64_t kLongestToken = 512;

enum class Path : uint8_t {
  other,
  models,
  model,
  completions,
  chat,
  responses,
  response,
  embeddings,
  rerank,
  score,
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
  if (path == kResponses) return Path::responses;
  if (path.starts_with(kResponses) && path[kResponses.size()] == '/') return Path::response;
  if (path == "/v1/embeddings") return Path::embeddings;
  if (path == "/v1/rerank" || path == "/rerank" || path == "/v2/rerank") return Path::rerank;
  if (path == "/v1/score" || path == "/score") return Path::score;
  if (path == "/tokenize") return Path::tokenize;
  if (path == "/detokenize") return Path::detokenize;
  if (path == "/health" || path == "/ping") return Path::health;
  return path == "/version" ? Path::version : Path::other;
}

bool is_get(Path path) {
  return path == Path::models || path == Path::model || path == Path::health || path == Path::version;
}

bool allows(Path path, std::string_view method) {
  const bool reads = method == "GET" || method == "HEAD";
  if (path == Path::response) return reads || method == "DELETE";
  return is_get(path) ? reads : method == "POST";
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

/// The data of a request that the server makes itself; null for a client's.
const OpenAiApi::Own* own_of(const http::Request& request) {
  return static_cast<const OpenAiApi::Own*>(request.own.get());
}

http::Response ok_json(const Json& json) { return http::json_response(200, json.dump()); }

/// The caller, whose quotas are charged later.
Caller caller_of(const http::Request& request) {
  return {.header = [&request](const std::string& name) { return request.header(name); }, .is_counted = true};
}

/// A header that holds a whole number; 0 if it is absent. Throws invalid_argument for anything else.
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

/// Throws for a text that is longer than any prompt of the model, before time is spent on it.
const std::string& require_size(const std::string& text, const TextModel& model) {
  base::require(static_cast<int64_t>(text.size() / kLongestToken) < model.max_length(), "the prompt has ",
                text.size(), " bytes, and the model takes ", model.max_length(), " tokens");
  return text;
}

/// A page of the items that a response answered, the latest first unless `order` is asc.
Json input_items(const Json& items, std::string_view query) {
  const int64_t limit = page_of(query);
  const std::string after = query_value(query, "after"), order = query_value(query, "order");
  base::require(order.empty() || order == "asc" || order == "desc", "order: expected asc or desc");
  base::JsonArray list = items.as_array();
  if (order != "asc") std::reverse(list.begin(), list.end());
  auto at = list.begin();
  if (!after.empty()) {
    at = std::find_if(list.begin(), list.end(), [&](const Json& i) { return i.at("id") == Json(after); });
    base::require(at != list.end(), "after: no item has the id '", after.substr(0, 64), "'");
    ++at;
  }
  const auto end = at + std::min<int64_t>(limit, list.end() - at);
  const Json first = at == end ? Json() : at->at("id"), last = at == end ? Json() : (end - 1)->at("id");
  Json data = Json::array();
  for (; at != end; ++at) data.push_back(*at);
  return Json::object({{"object", "list"},
                       {"data", std::move(data)},
                       {"first_id", first},
                       {"last_id", last},
                       {"has_more", end != list.end()}});
}

}  // namespace

OpenAiApi::OpenAiApi(KserveCore& core, int64_t keep_alive_ns, const KeptResponses::Limits& kept)
    : core_(core),
      first_number_(base::KeyedHash::random_key()[0]),
      kept_(std::make_shared<KeptResponses>(kept, core.clock())),
      keeper_(keep_alive_ns),
      long_requests_(1, kMostLongRequests),
      formed_requests_(1, kMostLongRequests) {}

bool OpenAiApi::takes(std::string_view path) {
  return path_of(path) != Path::other || path.starts_with("/v1/");
}

int64_t OpenAiApi::next_seed() const {
  constexpr uint64_t kOdd = 0x9E3779B97F4A7C15;  // makes successive numbers differ in all bits
  return static_cast<int64_t>((first_number_ + ++numbers_ * kOdd) >> 1);
}

void OpenAiApi::handle(http::Request&& request, http::Reply reply) const {
  const Path path = path_of(request.path);
  try {
    if (path == Path::other) return reply.send(openai_error(404, "Not Found"));
    if (!allows(path, request.method)) {
      http::Response refusal = openai_error(405, "Method Not Allowed");
      refusal.headers.emplace_back("Allow", is_get(path)             ? "GET"
                                            : path == Path::response ? "GET, DELETE"
                                                                     : "POST");
      return reply.send(std::move(refusal));
    }
    const std::string_view body = request.body.view();
    const bool has_form = std::any_of(std::begin(kFormWords), std::end(kFormWords), [&](std::string_view w) {
      return body.find(w) != std::string_view::npos;
    });
    if (body.size() <= kLongBody && !has_form) return run(request, std::move(reply));
    struct Long {
      http::Request request;
      http::Reply reply;
    };
    const auto given = std::make_shared<Long>(Long{std::move(request), std::move(reply)});
    try {
      (has_form ? formed_requests_ : long_requests_).submit([this, given] {
        run(given->request, std::move(given->reply));
      });
    } catch (const base::Error& error) {
      given->reply.send(openai_error(error));
    }
  } catch (const base::Error& error) {
    reply.send(openai_error(error));
  }
}

void OpenAiApi::handle_own(http::Request&& request, http::Reply reply, Own own) const {
  request.own = std::make_shared<const Own>(std::move(own));
  handle(std::move(request), std::move(reply));
}

bool OpenAiApi::makes_answers(std::string_view path) {
  const Path which = path_of(path);
  return which == Path::completions || which == Path::chat || which == Path::embeddings;
}

/// The id of an answer, without the prefix for its kind.
std::string OpenAiApi::id_of(const http::Request& request) const {
  const Own* own = own_of(request);
  return own != nullptr ? own->id : hexadecimal(static_cast<uint64_t>(next_seed()));
}

/// The value that identifies the tenant.
std::string OpenAiApi::tenant_of(const http::Request& request) const {
  if (const Own* own = own_of(request)) return own->tenant;
  return core_.tenants().names_by_header() ? std::string(request.header(core_.tenants().header()))
                                           : std::string();
}

/// Charges a request to the quota of its key, and adds headers about that to the reply; null if no quota
/// applies. Throws QuotaError if too little is left.
std::shared_ptr<TokenCharge> OpenAiApi::charge(const http::Request& request, int64_t prompt_tokens,
                                               int64_t answer_tokens, ReplyHeaders& headers) const {
  if (!core_.keys().is_on() || own_of(request) != nullptr) return nullptr;
  const auto key = core_.keys().find(request.header("authorization"));
  if (key == nullptr) return nullptr;  // admitted by a rule instead
  const int64_t now_ns = core_.now_ns();
  auto charge = std::make_shared<TokenCharge>(key->account, prompt_tokens, answer_tokens, now_ns);
  headers = key->account->headers(now_ns);
  return charge;
}

/// Reports all errors in the reply.
void OpenAiApi::run(const http::Request& request, http::Reply reply) const {
  const Path path = path_of(request.path);
  if (path == Path::completions || path == Path::chat || path == Path::responses)
    return complete(request, std::move(reply));
  if (path == Path::embeddings || path == Path::rerank || path == Path::score)
    return embed(request, std::move(reply));
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
  const Caller caller = caller_of(request);
  if (core_.rules().judge_before_reading(category_of(path), caller) != Access::allowed)
    return openai_error(401, "Unauthorized", "invalid_api_key");
  switch (path) {
    case Path::models: return ok_json(models());
    case Path::model: {
      const std::string name = http::percent_decode(request.path.substr(kModels.size() + 1));
      try {
        const Found found = find(name, request);
        return ok_json(model_of(*found.served, std::string(split_model_name(name).adapter)));
      } catch (const base::Error& error) {
        if (error.code() != base::ErrorCode::not_found) throw;
        return openai_error(404, error.message(), "model_not_found");
      }
    }
    case Path::version: return ok_json(Json::object({{"version", core_.server_metadata().at("version")}}));
    case Path::tokenize: return ok_json(tokenize(request));
    case Path::detokenize: return ok_json(detokenize(request));
    case Path::response: return kept_response(request);
    default: return openai_error(404, "Not Found");
  }
}

/// Handles GET and DELETE /v1/responses/ID, and GET /v1/responses/ID/input_items.
http::Response OpenAiApi::kept_response(const http::Request& request) const {
  const std::string tenant = core_.tenants().name_of(tenant_of(request));
  std::string id = http::percent_decode(request.path.substr(kResponses.size() + 1));
  while (id.ends_with('/')) id.pop_back();
  constexpr std::string_view kItems = "/input_items";
  const bool lists = id.ends_with(kItems);
  if (lists) id.resize(id.size() - kItems.size());
  if (request.method == "DELETE") {
    if (lists) return openai_error(405, "Method Not Allowed");
    kept_->remove(id, tenant);
    return ok_json(Json::object({{"id", id}, {"object", "response"}, {"deleted", true}}));
  }
  const std::shared_ptr<const KeptResponse> kept = kept_->find(id, tenant);
  if (lists) return ok_json(input_items(base::parse_json(kept->input), request.query));
  if (query_value(request.query, "stream") == "true")
    throw MemberError(base::ErrorCode::unsupported, "stream", "a kept response is given whole");
  return http::json_response(200, kept->response);
}

/// A model that continues texts, and its adapter. Throws not_found for any other name, with the message that
/// clients expect.
OpenAiApi::Found OpenAiApi::find(const std::string& name, const http::Request& request) const {
  const Caller caller = caller_of(request);
  const ModelName parts = split_model_name(name);
  const std::string model(parts.base);
  const Own* own = own_of(request);
  const Category category = category_of(path_of(request.path));
  const bool is_allowed =
      own != nullptr ? own->may_ask(model) : core_.rules().judge(category, model, caller) == Access::allowed;
  std::shared_ptr<ServedModel> served = is_allowed ? core_.find(model, "") : nullptr;
  TextModel* texts = served ? served->texts() : nullptr;
  if (texts == nullptr)
    base::fail(base::ErrorCode::not_found, "The model `", name, "` does not exist or continues no texts");
  const bool is_base = parts.base.size() == name.size();
  return {std::move(served), *texts, is_base ? nullptr : texts->adapter(parts.adapter)};
}

/// Describes a model, or one of its adapters if `adapter` is not empty.
Json OpenAiApi::model_of(const ServedModel& model, const std::string& adapter) const {
  const std::string id = adapter.empty() ? model.name() : model.name() + ":" + adapter;
  return Json::object({{"id", id},
                       {"object", "model"},
                       {"created", core_.started_s()},
                       {"owned_by", "trireme"},
                       {"root", id},
                       {"parent", adapter.empty() ? Json() : Json(model.name())},
                       {"max_model_len", const_cast<ServedModel&>(model).texts()->max_length()}});
}

Json OpenAiApi::models() const {
  Json list = Json::array();
  for (const std::shared_ptr<ServedModel>& model : core_.serving()) {
    if (model->texts() == nullptr) continue;
    list.push_back(model_of(*model));
    for (const std::string& adapter : model->texts()->adapters()) list.push_back(model_of(*model, adapter));
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

/// Everything needed to ask a model.
struct OpenAiApi::Ready {
  Found model;
  std::vector<std::vector<int64_t>> prompts;
  CompletionCall::Origin origin;
};

/// Finds the model, and completes the request with what its headers state. Throws.
OpenAiApi::Ready OpenAiApi::ready(CompletionRequest& asked, const http::Request& request) const {
  Found model = find(asked.model, request);
  asked.ask.generate.adapter = model.adapter;
  const Own* own = own_of(request);
  asked.ask.tenant = tenant_of(request);
  asked.ask.is_background = own != nullptr && own->is_background;
  if (asked.ask.priority == 0) asked.ask.priority = number_of(request, "x-priority");
  asked.ask.timeout_us = number_of(request, "x-timeout-ms") * 1000;
  asked.ask.received_ns = request.received_ns;
  std::vector<std::vector<int64_t>> prompts = prompts_of(asked, model.texts);
  const WantedForm form = asked.whole_form(model.texts.tool_form());
  if (form.any()) asked.ask.grammar = compile(form, model.texts);
  if (!asked.has_most_tokens) {  // of a chat, which has one prompt
    const auto prompt = static_cast<int64_t>(prompts.at(0).size());
    asked.ask.generate.max_tokens = std::max<int64_t>(1, model.texts.max_length() - prompt);
  }
  CompletionCall::Origin origin{.id = id_of(request),
                                .created = own != nullptr ? own->created_s : core_.wall_s(),
                                .tells_known = own == nullptr,
                                .keeps = model.served};
  int64_t prompt_tokens = 0, most_tokens = 0;
  for (const std::vector<int64_t>& prompt : prompts) prompt_tokens += static_cast<int64_t>(prompt.size());
  if (asked.has_most_tokens)  // otherwise tokens are charged as they arrive
    most_tokens = static_cast<int64_t>(prompts.size()) * asked.best_of *
                  std::min(asked.ask.generate.max_tokens, model.texts.max_length());
  asked.ask.charge = charge(request, prompt_tokens, most_tokens, origin.headers);
  return {std::move(model), std::move(prompts), std::move(origin)};
}

void OpenAiApi::complete(const http::Request& request, http::Reply reply) const {
  const Caller caller = caller_of(request);
  if (own_of(request) == nullptr &&
      core_.rules().judge_before_reading(Category::inference, caller) != Access::allowed)
    return reply.send(openai_error(401, "Unauthorized", "invalid_api_key"));
  std::shared_ptr<CompletionCall> call;
  const Path path = path_of(request.path);
  const std::string_view body = request.body.view();
  try {
    if (path == Path::responses) return respond(request, reply);
    const Own* own = own_of(request);
    const int64_t seed = own != nullptr ? own->seed : next_seed();
    CompletionRequest asked = path == Path::chat ? chat_request(body, seed) : completion_request(body, seed);
    if (own != nullptr && asked.streams)
      throw MemberError(base::ErrorCode::unsupported, "stream", "answers of a batch are not streamed");
    Ready with = ready(asked, request);
    const bool streams = asked.streams;
    call = std::make_shared<CompletionCall>(std::move(asked), std::move(reply), with.model.texts.tokenizer(),
                                            std::move(with.origin));
    if (streams) keeper_.keep(call);
    call->start(with.model.texts, with.prompts);
  } catch (const base::Error& error) {
    if (call || !reply) throw;  // the call has the reply, and reports its own errors
    const bool is_unknown = error.code() == base::ErrorCode::not_found;
    reply.send(is_unknown ? openai_error(404, error.message(), "model_not_found") : openai_error(error));
  }
}

/// Takes the reply only when nothing that throws is left.
void OpenAiApi::respond(const http::Request& request, http::Reply& reply) const {
  const std::string tenant = core_.tenants().name_of(tenant_of(request));
  const auto find = [&](const std::string& id) {
    try {
      return kept_->conversation(id, tenant);
    } catch (const base::Error& error) {
      if (error.code() != base::ErrorCode::not_found) throw;
      throw MemberError(base::ErrorCode::invalid_argument, "previous_response_id", error.message());
    }
  };
  ResponsesRequest asked =
      responses_request(request.body.view(), next_seed(), kept_->is_on() ? FindConversation(find) : nullptr);
  Ready with = ready(asked.chat, request);
  ResponsesCall::Keep keep;
  if (asked.is_kept) {
    const base::KeyedHash::Key secret =
        base::KeyedHash::random_key();  // whoever knows it may read the response
    with.origin.id = hexadecimal(secret[0]) + hexadecimal(secret[1]);
    keep = [kept = kept_, tenant, input = asked.items.dump()](const std::string& id, std::string response) {
      kept->add(id, tenant, {.response = std::move(response), .input = input});
    };
  }
  const bool streams = asked.chat.streams;
  const auto call =
      std::make_shared<ResponsesCall>(std::move(asked), std::move(reply), with.model.texts.tokenizer(),
                                      std::move(with.origin), std::move(keep));
  if (streams) keeper_.keep(call);
  call->start(with.model.texts, std::move(with.prompts.at(0)));
}

/// Asks the model named by a request for rows of its texts. Throws.
void OpenAiApi::embed_texts(const http::Request& request, EmbeddingRequest asked,
                            const std::shared_ptr<http::Reply>& reply,
                            std::function<std::string(const Embedded&)> answer) const {
  const Caller caller = caller_of(request);
  const Own* own = own_of(request);
  const bool is_allowed =
      own != nullptr ? own->may_ask(asked.model)
                     : core_.rules().judge(Category::inference, asked.model, caller) == Access::allowed;
  if (!is_allowed) base::fail(base::ErrorCode::not_found, "The model `", asked.model, "` does not exist");
  if (asked.priority == 0) asked.priority = number_of(request, "x-priority");
  asked.timeout_us = number_of(request, "x-timeout-ms") * 1000;
  asked.tenant = tenant_of(request);
  asked.is_background = own != nullptr && own->is_background;
  asked.received_ns = request.received_ns;
  asked.begun_ns = request.begun_ns;
  asked.charge = charge(request, 0, 0, asked.headers);  // the number of tokens is known only after the run
  const std::shared_ptr<ServedModel> model = core_.find(asked.model, "");
  serve::embed(core_, model, std::move(asked), reply, std::move(answer));
}

void OpenAiApi::embed(const http::Request& request, http::Reply reply) const {
  const Caller caller = caller_of(request);
  const auto shared = std::make_shared<http::Reply>(std::move(reply));
  try {
    if (own_of(request) == nullptr &&
        core_.rules().judge_before_reading(Category::inference, caller) != Access::allowed)
      return shared->send(openai_error(401, "Unauthorized", "invalid_api_key"));
    const std::string_view body = request.body.view();
    const std::string id = id_of(request);
    const Own* own = own_of(request);
    const int64_t created_s = own != nullptr ? own->created_s : core_.wall_s();
    switch (path_of(request.path)) {
      case Path::rerank: {
        const RerankRequest asked = rerank_request(body);
        return embed_texts(request, asked.embedding, shared,
                           [asked, id](const Embedded& rows) { return rerank_answer(asked, rows, id); });
      }
      case Path::score: {
        const ScoreRequest asked = score_request(body);
        return embed_texts(request, asked.embedding, shared,
                           [asked, id, now = created_s](const Embedded& rows) {
                             return score_answer(asked, rows, id, now);
                           });
      }
      default: {
        EmbeddingRequest asked = embedding_request(body);
        EmbeddingRequest form = {
            .model = asked.model, .is_base64 = asked.is_base64, .dimensions = asked.dimensions};
        return embed_texts(request, std::move(asked), shared, [form = std::move(form)](const Embedded& rows) {
          return embedding_answer(form, rows);
        });
      }
    }
  } catch (const base::Error& error) {
    const bool is_unknown = error.code() == base::ErrorCode::not_found;
    shared->send(is_unknown ? openai_error(404, error.message(), "model_not_found") : openai_error(error));
  }
}

}  // namespace trireme::serve
