// Embeddings of texts over the OpenAI API, by a model whose input is a text.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "http/reply.h"
#include "serve/core/kserve_core.h"

namespace trireme::serve {

struct EmbeddingRequest {
  std::string model;
  std::vector<std::string> texts;
  bool is_base64 = false;  ///< little-endian f32 in base64, as the official clients ask for
  int64_t dimensions = 0;  ///< the first so many, scaled to length 1 again; 0: all
  uint64_t priority = 0, timeout_us = 0;
  std::string tenant;
  int64_t received_ns = 0, begun_ns = 0;
};

/// Throws MemberError for what is missing, of another type or out of range, and for tokens instead of texts.
EmbeddingRequest embedding_request(std::string_view body);

/// Asks the model for all texts, as many at a time as it takes in a batch, and answers once all are there.
/// Throws not_found for a model that makes no embeddings of texts; later errors become the reply.
void embed(const KserveCore& core, const std::shared_ptr<ServedModel>& model, EmbeddingRequest request,
           const std::shared_ptr<http::Reply>& reply);

}  // namespace trireme::serve
