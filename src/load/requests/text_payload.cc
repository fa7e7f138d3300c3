// Requests for language models over the OpenAI API.
#include "load/requests/text_payload.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/files/file.h"
#include "base/rng.h"
#include "base/text/json.h"

namespace trireme::load {
namespace {

constexpr size_t kMostBytes = size_t{1} << 30;
constexpr size_t kPlainVariants = 2000;          // so many prompts before one comes again and is known
constexpr size_t kPlainBytes = size_t{1} << 28;  // or as many as take this, but not fewer than are counted
constexpr size_t kWarmUpVariants = 64;
constexpr size_t kTextBytes = 8000;  // of the text whose tokens prompts are made of

/// Words of random letters: their tokens are pieces of words, as those of texts are.
std::string words(uint64_t seed) {
  base::Rng rng(seed);
  std::string text;
  while (text.size() < kTextBytes) {
    for (uint64_t i = 0, n = 1 + rng.below(9); i < n; ++i) text += static_cast<char>('a' + rng.below(26));
    text += ' ';
  }
  return text;
}

struct TextModelFacts {
  std::vector<int64_t> vocabulary;  // some tokens that it has
  int64_t max_length = 0;
};

/// What the server knows of the length of a text: beside the tokens (vLLM and this program), or among its
/// properties (llama.cpp); else no bound.
int64_t longest_text(const base::Json& tokens, const Payload& payload, const std::string& prefix) {
  if (const base::Json* length = tokens.find("max_model_len")) return length->as_int();
  try {
    const base::Json properties = base::parse_json(
        call(payload.target,
             http::request_head("GET", prefix + "/props", payload.url.authority(), 0, payload.headers)));
    const base::Json* settings = properties.find("default_generation_settings");
    return settings == nullptr ? INT32_MAX : settings->get_or<int64_t>("n_ctx", INT32_MAX);
  } catch (const base::Error&) {
    return INT32_MAX;  // it has none, or they are not for everybody
  }
}

TextModelFacts ask_model(const LoadOptions& options, const Payload& payload, const std::string& prefix) {
  const std::string text = options.text_file.empty()
                               ? words(static_cast<uint64_t>(options.seed))
                               : base::read_file(options.text_file).substr(0, kTextBytes);
  // `prompt` is vLLM's word for it, `content` llama.cpp's.
  base::Json body = base::Json::object({{"model", options.model}, {"prompt", text}, {"content", text}});
  body.set("add_special_tokens", false);
  http::HeaderList headers = payload.headers;
  headers.emplace_back("Content-Type", "application/json");
  const std::string sent = body.dump();
  base::Json answer;
  try {
    answer = base::parse_json(
        call(payload.target,
             http::request_head("POST", prefix + "/tokenize", payload.url.authority(), sent.size(), headers) +
                 sent));
  } catch (const base::Error& e) {
    throw e.with("tokens of " + options.model);
  }
  TextModelFacts facts{.max_length = longest_text(answer, payload, prefix)};
  std::set<int64_t> tokens;
  for (const base::Json& id : answer.at("tokens").as_array()) tokens.insert(id.as_int());
  facts.vocabulary.assign(tokens.begin(), tokens.end());
  base::require(!facts.vocabulary.empty(), "model ", options.model, " has no tokens for a text");
  return facts;
}

/// What all requests have beside prompt and length: their settings, and what --members says, as the end of an
/// object.
std::string settings_of(const LoadOptions& options) {
  base::Json settings = base::Json::object({{"temperature", 0}, {"ignore_eos", true}});
  if (options.stream) settings.set("stream", true);
  if (options.text.members.empty()) return "," + settings.dump().substr(1);
  try {
    const base::Json more = base::parse_json(options.text.members);
    for (const auto& [name, value] : more.as_object()) {
      for (const char* own : {"model", "prompt", "max_tokens", "stream"})
        base::require(name != own, "'", own, "' is the request's own");
      settings.set(name, value);
    }
  } catch (const base::Error& e) {
    throw e.with("--members");
  }
  return "," + settings.dump().substr(1);
}

std::string completion_body(const LoadOptions& options, const std::vector<int64_t>& prompt, int64_t answer,
                            const std::string& settings) {
  std::string json = "{\"model\":";
  base::append_json(json, std::string_view(options.model));
  json += ",\"prompt\":[";
  for (size_t i = 0; i < prompt.size(); ++i) {
    if (i > 0) json += ',';
    base::append_json(json, prompt[i]);
  }
  json += "],\"max_tokens\":";
  base::append_json(json, answer);
  return json + settings;
}

}  // namespace

std::vector<TextLengths> text_lengths(const LoadOptions& options, const std::vector<Arrival>& arrivals) {
  std::vector<TextLengths> list;
  for (const Arrival& a : arrivals) {
    list.push_back({.prompt = a.length > 0 ? a.length : options.text.prompt_tokens,
                    .answer = a.answer_length > 0 ? a.answer_length : options.text.answer_tokens,
                    .shared_blocks = a.blocks});
  }
  // A trace is sent once; lengths come again, with other prompts.
  if (!list.empty() && options.text.lengths.empty()) return list;
  const size_t given = list.size();
  list.resize(std::max(given, kPlainVariants),
              {.prompt = options.text.prompt_tokens, .answer = options.text.answer_tokens});
  for (size_t i = given; given > 0 && i < list.size(); ++i) list[i] = list[i - given];
  return list;
}

std::vector<int64_t> draw_prompt(const TextLengths& lengths, const std::vector<int64_t>& vocabulary,
                                 uint64_t seed, uint64_t number) {
  constexpr uint64_t kOfBlocks = uint64_t{1} << 63;  // streams of blocks beside those of requests
  std::vector<int64_t> prompt;
  prompt.reserve(static_cast<size_t>(lengths.prompt));
  const auto draw = [&](uint64_t stream, int64_t until) {
    base::Rng rng(seed, stream);
    while (static_cast<int64_t>(prompt.size()) < std::min(until, lengths.prompt))
      prompt.push_back(vocabulary[rng.below(vocabulary.size())]);
  };
  for (const int64_t block : lengths.shared_blocks)
    draw(kOfBlocks | static_cast<uint64_t>(block), static_cast<int64_t>(prompt.size()) + kSharedBlock);
  draw(number, lengths.prompt);
  return prompt;
}

void add_text_requests(const LoadOptions& options, Payload& payload) {
  base::require(payload.target.protocol == Protocol::http, "--completions goes over HTTP");
  std::string prefix = payload.url.target;
  while (!prefix.empty() && prefix.back() == '/') prefix.pop_back();
  const TextModelFacts model = ask_model(options, payload, prefix);
  const std::string& recorded = options.trace.empty() ? options.text.lengths : options.trace;
  const std::vector<Arrival> arrivals =
      recorded.empty() ? std::vector<Arrival>() : parse_trace(base::read_file(recorded));
  const auto seed = static_cast<uint64_t>(options.seed);
  const TextLengths shared{.prompt = options.text.shared_tokens};
  const std::vector<int64_t> beginning = draw_prompt(shared, model.vocabulary, seed, UINT64_MAX >> 1);
  payload.url.target = prefix + "/v1/completions";
  http::HeaderList headers = payload.headers;
  headers.emplace_back("Content-Type", "application/json");
  const std::string settings = settings_of(options);
  const auto request_of = [&](TextLengths lengths, uint64_t number) {
    // What the model cannot take is cut, the answer first.
    lengths.answer = std::clamp<int64_t>(lengths.answer, 1, std::max<int64_t>(1, model.max_length - 1));
    lengths.prompt =
        std::clamp<int64_t>(lengths.prompt, 1, std::max<int64_t>(1, model.max_length - lengths.answer));
    std::vector<int64_t> prompt = draw_prompt(lengths, model.vocabulary, seed, number);
    if (arrivals.empty())
      std::copy_n(beginning.begin(), std::min(beginning.size(), prompt.size()), prompt.begin());
    const std::string body = completion_body(options, prompt, lengths.answer, settings);
    return http::request_head("POST", payload.url.target, payload.url.authority(), body.size(), headers) +
           body;
  };
  const std::vector<TextLengths> all = text_lengths(options, arrivals);
  const size_t counted = options.requests > 0 ? static_cast<size_t>(options.requests) : 1;
  size_t bytes = 0;
  for (const TextLengths& lengths : all) {
    if (options.trace.empty() && bytes > kPlainBytes && payload.requests.size() >= counted) break;
    payload.requests.push_back(request_of(lengths, payload.requests.size()));
    bytes += payload.requests.back().size();
    if (bytes > kMostBytes)
      base::fail(base::ErrorCode::exhausted, "requests of more than ", kMostBytes, " bytes: take ",
                 options.trace.empty() ? "fewer or shorter ones" : "a shorter trace");
  }
  // Drawn by numbers that no request and no block has: only a shared beginning is sent again.
  constexpr uint64_t kOfWarmUp = uint64_t{1} << 62;
  for (size_t i = 0; i < std::min({all.size(), payload.requests.size(), kWarmUpVariants}); ++i)
    payload.warm_up.push_back(request_of({.prompt = all[i].prompt, .answer = all[i].answer}, kOfWarmUp | i));
}

}  // namespace trireme::load
