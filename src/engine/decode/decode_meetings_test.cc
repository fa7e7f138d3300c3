// Counts how often the threads of a team synchronize in a decoding step on a CPU: weights in blocks, and 22
// layers as in a model with 1.1 billion weights.
#include <gtest/gtest.h>

#include "base/rng.h"
#include "base/threads/team_meetings.h"
#include "engine/decode/decode_session.h"
#include "model/zoo/llama.h"

namespace trireme::engine {
namespace {

constexpr int64_t kMeetingVocabulary = 1024;

/// Wide enough that every product is divided among threads.
model::Model wide_llama(int64_t layers) {
  model::zoo::LlamaConfig c;
  c.vocabulary = kMeetingVocabulary;
  c.positions = 1024;
  c.width = 384;
  c.layers = layers;
  c.heads = 6;
  c.kv_heads = 2;
  c.inner = 1024;
  c.is_tied = false;
  model::RandomParams params(3);
  return model::zoo::llama(c, params);
}

DecodeOptions options(passes::WeightBits weights, int threads) {
  DecodeOptions o{.threads = threads};
  o.strategy.weights.weights = weights;
  o.max_sequences = 32;
  o.max_tokens = 1024;
  return o;
}

std::vector<int64_t> tokens_of(size_t sequence, int64_t count) {
  base::Rng rng(7 + sequence);
  std::vector<int64_t> tokens;
  for (int64_t i = 0; i < count; ++i)
    tokens.push_back(static_cast<int64_t>(rng.below(static_cast<uint64_t>(kMeetingVocabulary))));
  return tokens;
}

/// Synchronizations of one step in which each of `sequences` sequences, of about 600 / `sequences` tokens
/// each, adds one token.
int64_t meetings_of(DecodeSession& session, size_t sequences) {
  std::vector<SequenceId> ids;
  for (size_t s = 0; s < sequences; ++s) {
    ids.push_back(session.open());
    const auto prompt = tokens_of(s, 600 / static_cast<int64_t>(sequences) + 1);
    const DecodePiece piece{ids.back(), prompt};
    session.step({&piece, 1});
  }
  const int64_t next[] = {5};
  std::vector<DecodePiece> pieces;
  for (const SequenceId id : ids) pieces.push_back({id, next});
  session.step(pieces);  // compiles the program
  const int64_t before = base::team_meetings();
  session.step(pieces);
  const int64_t meetings = base::team_meetings() - before;
  for (const SequenceId id : ids) session.close(id);
  return meetings;
}

TEST(DecodeMeetings, Of22LayersAreFewerThan100) {
  const DecodeOptions o = options(passes::WeightBits::q4_0, 2);
  DecodeSession session(std::make_shared<DecodeModel>(wide_llama(22).graph, o), o);
  for (const size_t sequences : {1, 16}) {
    const int64_t meetings = meetings_of(session, sequences);
    EXPECT_LT(meetings, 100) << sequences << " sequences";
    EXPECT_GE(meetings, 4 * 22) << "every product should be shared: else nothing was counted";
  }
}

TEST(DecodeMeetings, OfALayerAreFour) {
  const DecodeOptions o = options(passes::WeightBits::q4_0, 3);
  DecodeSession two(std::make_shared<DecodeModel>(wide_llama(2).graph, o), o),
      three(std::make_shared<DecodeModel>(wide_llama(3).graph, o), o);
  for (const size_t sequences : {1, 2, 32})
    EXPECT_EQ(meetings_of(three, sequences) - meetings_of(two, sequences), 4) << sequences << " sequences";
}

/// Logits after the last of `tokens`, fed in pieces.
std::vector<float> logits_of(DecodeSession& session, std::span<const int64_t> tokens, size_t piece) {
  const SequenceId id = session.open();
  std::vector<float> logits;
  for (size_t at = 0; at < tokens.size(); at += piece) {
    const DecodePiece next{id, tokens.subspan(at, std::min(piece, tokens.size() - at))};
    const auto row = session.step({&next, 1});
    logits.assign(row.begin(), row.end());
  }
  session.close(id);
  return logits;
}

TEST(DecodeMeetings, BitsDependNeitherOnPiecesNorOnTheTeam) {
  const auto tokens = tokens_of(1, 300);
  for (const auto weights : {passes::WeightBits::q4_0, passes::WeightBits::q8_0}) {
    const DecodeOptions one = options(weights, 1), three = options(weights, 3);
    const model::Model model = wide_llama(2);
    DecodeSession alone(std::make_shared<DecodeModel>(model.graph, one), one),
        team(std::make_shared<DecodeModel>(model.graph, three), three);
    const std::vector<float> want = logits_of(alone, tokens, tokens.size());
    for (const size_t piece : {size_t{1}, size_t{7}, size_t{64}, tokens.size()}) {
      EXPECT_EQ(logits_of(team, tokens, piece), want) << "pieces of " << piece;
    }
  }
}

}  // namespace
}  // namespace trireme::engine
