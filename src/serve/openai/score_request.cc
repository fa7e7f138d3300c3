// Reads requests for scores of how well texts match, by models of pairs or by embeddings.
#include "serve/openai/score_request.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "serve/openai/members.h"

namespace trireme::serve {
namespace {

using base::Json;

/// Whether a text may be empty: documents come from searches, which may find empty ones.
enum class Emptiness { is_refused, is_scored };

/// Reads a text, or an object that contains one.
std::string given_text(const Json& given, std::string_view member, Emptiness emptiness) {
  const Json* text = given.is_object() ? given.find("text") : &given;
  if (text == nullptr || !text->is_string()) fail_member(member, "expected texts, or objects with a text");
  if (text->as_string().empty() && emptiness == Emptiness::is_refused) fail_member(member, "a text is empty");
  return text->as_string();
}

/// Reads a list of texts, or one text.
std::vector<std::string> given_texts(const Json& given, std::string_view member, Emptiness emptiness) {
  const base::JsonArray list = given.is_array() ? given.as_array() : base::JsonArray{given};
  if (list.empty() || list.size() > kMostTexts)
    fail_member(member, base::concat("expected 1 to ", kMostTexts, " texts, found ", list.size()));
  std::vector<std::string> texts;
  for (const Json& one : list) texts.push_back(given_text(one, member, emptiness));
  return texts;
}

std::string model_of(const Members& m) {
  std::string model = m.text("model");
  if (model.empty()) fail_member("model", "is missing");
  return model;
}

/// Finds a member that has several names: the first one present.
const Json& first_member(const Members& m, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (const Json* found = m.find(name)) return *found;
  }
  fail_member(*names.begin(), "is missing");
}

/// Reads the members that all requests of this kind have.
void read_common(EmbeddingRequest& r, const Members& m) {
  r.model = model_of(m);
  r.priority = static_cast<uint64_t>(m.integer("priority", 0, 0, INT32_MAX));
  r.is_raw = !m.flag("activation", true) || !m.flag("use_activation", true);
  for (const char* name : {"truncate_prompt_tokens", "max_tokens_per_doc", "max_chunks_per_doc",
                           "rank_fields", "instruction", "chat_template"}) {
    if (m.has(name)) refuse_member(name, "is not served: pairs are cut to what the model takes");
  }
}

std::string usage(const Embedded& rows) {
  const std::string tokens = std::to_string(rows.tokens);
  return R"("usage":{"prompt_tokens":)" + tokens + R"(,"total_tokens":)" + tokens + "}";
}

}  // namespace

RerankRequest rerank_request(std::string_view body) {
  const Json json = request_object(body);
  const Members m(json);
  RerankRequest r;
  read_common(r.embedding, m);
  r.embedding.firsts = 1;
  r.embedding.texts = {given_text(first_member(m, {"query"}), "query", Emptiness::is_refused)};
  const Json& documents = first_member(m, {"documents"});
  if (!documents.is_array()) fail_member("documents", "expected a list of texts");
  std::vector<std::string> texts = given_texts(documents, "documents", Emptiness::is_scored);
  const auto count = static_cast<int64_t>(texts.size());
  r.embedding.texts.insert(r.embedding.texts.end(), texts.begin(), texts.end());
  const int64_t most = m.integer("top_n", 0, 0, INT32_MAX);
  r.most = static_cast<size_t>(most == 0 ? count : std::min(most, count));
  r.gives_documents = m.flag("return_documents", true);
  return r;
}

ScoreRequest score_request(std::string_view body) {
  const Json json = request_object(body);
  const Members m(json);
  ScoreRequest r;
  read_common(r.embedding, m);
  r.embedding.texts =
      given_texts(first_member(m, {"text_1", "data_1", "queries"}), "text_1", Emptiness::is_refused);
  const std::vector<std::string> second =
      given_texts(first_member(m, {"text_2", "data_2", "documents"}), "text_2", Emptiness::is_scored);
  const size_t firsts = r.embedding.firsts = r.embedding.texts.size();
  if (firsts > 1 && firsts != second.size())
    fail_member("text_2", base::concat("has ", second.size(), " texts, text_1 has ", firsts,
                                       ": one for all, or as many"));
  r.embedding.texts.insert(r.embedding.texts.end(), second.begin(), second.end());
  return r;
}

double cosine(const std::vector<float>& a, const std::vector<float>& b) {
  double product = 0, of_a = 0, of_b = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double x{a[i]}, y{b[i]};
    product += x * y;
    of_a += x * x;
    of_b += y * y;
  }
  return of_a > 0 && of_b > 0 ? product / std::sqrt(of_a * of_b) : 0;
}

std::vector<double> fits(const EmbeddingRequest& request, const Embedded& rows) {
  std::vector<double> scores;
  for (size_t i = request.firsts; i < request.texts.size(); ++i) {
    const size_t pair = i - request.firsts;
    scores.push_back(rows.are_scores ? double{rows.rows[pair].at(0)}
                                     : cosine(rows.rows[request.firsts == 1 ? 0 : pair], rows.rows[i]));
  }
  return scores;
}

std::string rerank_answer(const RerankRequest& request, const Embedded& rows, const std::string& id) {
  const std::vector<double> scores = fits(request.embedding, rows);
  std::vector<size_t> order(scores.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return scores[a] > scores[b]; });
  order.resize(std::min(order.size(), request.most));
  std::string out = "{\"id\":\"rerank-" + id + "\",\"object\":\"list\",\"model\":";
  base::append_json(out, request.embedding.model);
  out += "," + usage(rows) + ",\"results\":[";
  for (size_t i = 0; i < order.size(); ++i) {
    out += (i > 0 ? ",{\"index\":" : "{\"index\":") + std::to_string(order[i]) + ",\"relevance_score\":";
    base::append_json(out, scores[order[i]]);
    if (request.gives_documents) {
      out += ",\"document\":{\"text\":";
      base::append_json(out, request.embedding.texts[order[i] + 1]);
      out += '}';
    }
    out += '}';
  }
  return out + "]}";
}

std::string score_answer(const ScoreRequest& request, const Embedded& rows, const std::string& id,
                         int64_t created) {
  std::string out = "{\"id\":\"score-" + id +
                    "\",\"object\":\"list\",\"created\":" + std::to_string(created) + ",\"model\":";
  base::append_json(out, request.embedding.model);
  out += ",\"data\":[";
  const std::vector<double> scores = fits(request.embedding, rows);
  for (size_t pair = 0; pair < scores.size(); ++pair) {
    out += (pair > 0 ? ",{\"index\":" : "{\"index\":") + std::to_string(pair);
    out += ",\"object\":\"score\",\"score\":";
    base::append_json(out, scores[pair]);
    out += '}';
  }
  return out + "]," + usage(rows) + "}";
}

}  // namespace trireme::serve
