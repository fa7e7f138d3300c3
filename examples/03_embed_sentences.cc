// Turns two sentences into vectors with an encoder directory, using the library, and prints how similar they
// are.
//   03_embed_sentences [DIRECTORY [FIRST SECOND]]     DIRECTORY: default $TRIREME_ENCODER
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "data/text/wordpiece.h"
#include "engine/session/session.h"
#include "model/load/load.h"

using trireme::tensor::DType;
using trireme::tensor::Tensor;

namespace {

struct Tokens {
  Tensor ids, mask;  ///< i64 [2, length]; mask is 1 for tokens and 0 for padding
};

Tokens tokenize(const trireme::data::WordPiece& tokenizer, const std::string& first,
                const std::string& second) {
  const trireme::data::Encoding rows[] = {tokenizer.encode(first), tokenizer.encode(second)};
  const size_t length = std::max(rows[0].ids.size(), rows[1].ids.size());
  const trireme::tensor::Dims dims{2, static_cast<int64_t>(length)};
  Tokens tokens{Tensor::zeros(DType::i64, dims), Tensor::zeros(DType::i64, dims)};
  for (size_t r = 0; r < 2; ++r) {
    std::ranges::copy(rows[r].ids, tokens.ids.mutable_data<int64_t>().begin() + r * length);
    std::ranges::copy(rows[r].attention_mask, tokens.mask.mutable_data<int64_t>().begin() + r * length);
  }
  return tokens;
}

/// The encoder's vectors have length 1, so their dot product is their cosine.
double cosine(const Tensor& rows) {  // f32 [2, width]
  const std::span<const float> v = rows.data<float>();
  const size_t width = v.size() / 2;
  double sum = 0;
  for (size_t i = 0; i < width; ++i) sum += static_cast<double>(v[i]) * v[width + i];
  return sum;
}

int embed(const std::string& directory, const std::string& first, const std::string& second) {
  const auto tokenizer = trireme::data::WordPiece::from_directory(directory);
  trireme::model::Model loaded = trireme::model::load_model(directory);
  const auto& names = loaded.graph.output_names();
  const auto at = std::ranges::find(names, "sentence_embedding") - names.begin();
  trireme::base::require(at < std::ssize(names), "the model has no output 'sentence_embedding'");

  // Selecting one output drops the nodes that only other outputs need.
  loaded.graph.set_outputs({loaded.graph.outputs()[static_cast<size_t>(at)]}, {"sentence_embedding"});
  loaded.graph.sort();
  const auto model = std::make_shared<const trireme::engine::PreparedModel>(std::move(loaded.graph));
  trireme::engine::Session session(model);
  const Tokens tokens = tokenize(tokenizer, first, second);
  const Tensor rows = session.run({tokens.ids, tokens.mask})[0];
  std::printf("'%s'\n'%s'\nvectors %s, cosine %.4f\n", first.c_str(), second.c_str(),
              trireme::tensor::to_string(rows.dims()).c_str(), cosine(rows));
  return 0;
}

}  // namespace

int main(int argc, char** argv) try {
  const char* from_env = std::getenv("TRIREME_ENCODER");
  const std::string directory = argc > 1 ? argv[1] : from_env != nullptr ? from_env : "";
  trireme::base::require(!directory.empty(), "no encoder: name its directory or set TRIREME_ENCODER");
  if (argc > 3) return embed(directory, argv[2], argv[3]);
  return embed(directory, "A cat sleeps on the sofa.", "On the couch lies a kitten.");
} catch (const trireme::base::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
