// Embeddings of texts and scores of pairs over the OpenAI API, by models whose inputs are texts.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "http/reply.h"
#include "serve/core/kserve_core.h"

namespace trireme::serve {

constexpr size_t kMostTexts = 2048;  // of one request

struct EmbeddingRequest {
  std::string model;
  std::vector<std::string> texts;
  /// Of pairs: how many first texts there are, one for all of the second ones that follow, or as many. A
  /// model that scores pairs is asked for their scores, another one for the embeddings of all. 0: embeddings.
  size_t firsts = 0;
  bool is_raw = false;     ///< scores as the model's classifier gives them, without an activation
  bool is_base64 = false;  ///< little-endian f32 in base64, as the official clients ask for
  int64_t dimensions = 0;  ///< the first so many, scaled to length 1 again; 0: all
  uint64_t priority = 0, timeout_us = 0;
  std::string tenant;
  bool is_background = false;  ///< it runs in what others leave, and waits as long as it takes
  int64_t received_ns = 0, begun_ns = 0;
  std::shared_ptr<TokenCharge> charge = nullptr;  ///< that tokens are counted on; null: none
  ReplyHeaders headers = {};                      ///< of the reply, beside its own
};

/// Throws MemberError for what is missing, of another type or out of range, and for tokens instead of texts.
EmbeddingRequest embedding_request(std::string_view body);

/// What texts became.
struct Embedded {
  std::vector<std::vector<float>> rows;  ///< embeddings by text, or scores by pair
  int64_t tokens = 0;                    ///< of all
  bool are_scores = false;
};

/// The body of a reply with the embeddings themselves.
std::string embedding_answer(const EmbeddingRequest& request, const Embedded& embedded);

/// Asks the model for all texts, as many at a time as it takes in a batch, and replies with what `answer`
/// makes of them once all are there. Throws not_found for a model that makes neither embeddings of texts
/// nor, of pairs, scores; later errors become the reply.
void embed(const KserveCore& core, const std::shared_ptr<ServedModel>& model, EmbeddingRequest request,
           const std::shared_ptr<http::Reply>& reply, std::function<std::string(const Embedded&)> answer);

}  // namespace trireme::serve
