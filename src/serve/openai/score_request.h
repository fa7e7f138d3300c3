// How well texts fit each other: requests of /v1/rerank and /v1/score, and what models say of them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "serve/openai/embedding_call.h"

namespace trireme::serve {

/// Documents in the order in which they fit a query, as Jina, Cohere and vLLM have it.
struct RerankRequest {
  EmbeddingRequest embedding;  ///< the query, and behind it the documents
  size_t most = 0;             ///< results that are given
  bool gives_documents = true;
};

/// Texts in pairs, as vLLM has it.
struct ScoreRequest {
  EmbeddingRequest embedding;  ///< the first texts, and behind them the second
};

/// Parse a body. Throw MemberError for what is missing, of another type or out of range.
RerankRequest rerank_request(std::string_view body);
ScoreRequest score_request(std::string_view body);

/// The cosine of the angle between two rows of one length; 0 where one is nothing but zeros.
double cosine(const std::vector<float>& a, const std::vector<float>& b);

/// How well each second text fits its first one: what a model of pairs says, else the cosine of their
/// embeddings.
std::vector<double> fits(const EmbeddingRequest& request, const Embedded& rows);

/// The body of a reply. `id` without its kind.
std::string rerank_answer(const RerankRequest& request, const Embedded& rows, const std::string& id);
std::string score_answer(const ScoreRequest& request, const Embedded& rows, const std::string& id,
                         int64_t created);

}  // namespace trireme::serve
