// Decoding compared with the graph over whole sequences, and its guarantees: logits do not depend on the
// other sequences of the batch, on pieces or on threads; pages are returned.
#include "engine/decode/decode_session.h"

#include <gtest/gtest.h>

#include <cmath>

#include "engine/decode/test_decoding.h"
#include "engine/session/session.h"
#include "model/zoo/gpt2.h"
#include "model/zoo/llama.h"
#include "tests/test_device.h"

namespace trireme::engine {
namespace {

using tensor::Tensor;

model::Model tiny_llama() {
  model::zoo::LlamaConfig c;
  c.vocabulary = 97;
  c.positions = 160;
  c.width = 48;
  c.layers = 3;
  c.heads = 6;
  c.kv_heads = 2;
  c.inner = 80;
  c.rope_factor = 4;
  c.rope_original = 32;
  c.is_tied = false;
  model::RandomParams params(3);
  return model::zoo::llama(c, params);
}

model::Model tiny_gpt2() {
  model::zoo::Gpt2Config c = model::zoo::Gpt2Config::nano();
  c.dropout = 0.1;
  c.has_bias = true;
  c.width = 64;
  model::RandomParams params(4);
  return model::zoo::gpt2(c, params);
}

/// Logits at every position, computed by the loaded graph: [tokens, vocabulary].
Tensor whole(const model::Model& model, const std::vector<int64_t>& tokens) {
  Session session(std::make_shared<PreparedModel>(model.graph), {.threads = 2});
  const auto n = static_cast<int64_t>(tokens.size());
  const Tensor y = session.run({Tensor::from<int64_t>({1, n}, std::span(tokens))})[0];
  return y.reshaped({n, y.dims()[2]});
}

TEST(DecodeSession, GivesTheLogitsOfTheWholeSequence) {
  for (const model::Model& model : {tiny_llama(), tiny_gpt2()}) {
    const auto prepared = std::make_shared<DecodeModel>(model.graph);
    DecodeSession session(prepared, {.threads = 2});
    const auto tokens = random_tokens(60, 60, 1);
    const Tensor want = whole(model, tokens);
    const auto width = static_cast<size_t>(session.vocabulary());
    const SequenceId id = session.open();
    const auto rows = feed(session, id, tokens, {17, 1, 1, 20, 1});
    size_t at = 16, i = 0;
    for (const size_t n : {1, 1, 20, 1}) {
      ASSERT_LT(difference(rows[i++], want.data<float>().subspan(at * width, width)), 2e-5) << model.name;
      at += n;
    }
    EXPECT_EQ(session.length(id), 60);
    session.close(id);
    EXPECT_EQ(session.pool().free_pages(), session.pool().pages());
  }
}

TEST(DecodeSession, RanksKeepKeysOfHeadsThatTheyDoNotDivide) {
  for (const int64_t kv_heads : {1, 3}) {
    model::zoo::LlamaConfig c{.vocabulary = 97, .positions = 64, .width = 48, .layers = 2, .heads = 3};
    c.kv_heads = kv_heads;
    c.inner = 80;
    model::RandomParams params(5);
    const model::Model model = model::zoo::llama(c, params);
    const auto tokens = random_tokens(40, 97, 6);
    DecodeOptions two{.threads = 2};
    two.strategy.tp = 2;
    two.strategy.rules = {"*self_attn.*:whole"};
    const auto prepared = std::make_shared<DecodeModel>(model.graph, two);
    EXPECT_EQ(prepared->kv_layout(0).layers[0].kv_heads, kv_heads);
    DecodeSession one(std::make_shared<DecodeModel>(model.graph), {.threads = 2}), many(prepared, two);
    const auto want = feed(one, one.open(), tokens, {30, 1}), got = feed(many, many.open(), tokens, {30, 1});
    for (size_t i = 0; i < want.size(); ++i)
      EXPECT_LT(difference(got[i], want[i]), 2e-5) << kv_heads << " key heads, token " << i;
  }
}

TEST(DecodeSession, BitsDependOnNothingButTheSequence) {
  const model::Model model = tiny_llama();
  const auto prepared = std::make_shared<DecodeModel>(model.graph);
  const auto tokens = random_tokens(150, 97, 2);
  std::vector<float> want;
  {
    DecodeSession session(prepared, {.threads = 1});
    want = feed(session, session.open(), tokens, {1}).back();
  }
  for (const std::vector<size_t>& sizes :
       {std::vector<size_t>{150}, {149, 1}, {7}, {64}, {33, 100, 5}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}}) {
    for (int threads : {1, 3}) {
      DecodeSession session(prepared, {.threads = threads});
      EXPECT_EQ(feed(session, session.open(), tokens, sizes).back(), want) << "first piece " << sizes[0];
    }
    const auto low = [&](const std::vector<size_t>& pieces, int threads) {
      DecodeSession session(
          prepared, {.threads = threads, .strategy = {.precision = {.compute = passes::Precision::bf16}}});
      return feed(session, session.open(), tokens, pieces).back();
    };
    EXPECT_EQ(low(sizes, 2), low({1}, 1)) << "bf16, first piece " << sizes[0];
  }
  // Other sequences of many lengths, in prefill and in decoding.
  DecodeSession session(prepared, {.threads = 3});
  std::vector<SequenceId> mates;
  std::vector<std::vector<int64_t>> texts;
  for (uint32_t i = 0; i < 9; ++i) {
    mates.push_back(session.open());
    texts.push_back(random_tokens(1 + 13 * i, 97, 10 + i));
  }
  const SequenceId mine = session.open();
  std::vector<float> got;
  for (size_t at = 0, round = 0; at < tokens.size(); ++round) {
    const size_t n = std::min<size_t>(1 + 3 * round, tokens.size() - at);
    std::vector<DecodePiece> pieces;
    for (size_t m = 0; m < mates.size(); ++m) {
      const auto done = static_cast<size_t>(session.length(mates[m]));
      if ((round + m) % 3 == 0 || done >= texts[m].size()) continue;
      pieces.push_back(
          {mates[m], std::span(texts[m]).subspan(done, std::min<size_t>(m + 1, texts[m].size() - done))});
    }
    pieces.insert(pieces.begin() + static_cast<ptrdiff_t>(pieces.size() / 2),
                  {mine, std::span(tokens).subspan(at, n)});
    const auto logits = session.step(pieces);
    const auto width = static_cast<size_t>(session.vocabulary());
    const auto row = logits.subspan((pieces.size() - 1) / 2 * width, width);
    got.assign(row.begin(), row.end());
    at += n;
  }
  EXPECT_EQ(got, want);
}

TEST(DecodeSession, ForkedSequencesGoTheirOwnWays) {
  const model::Model model = tiny_llama();
  DecodeSession session(std::make_shared<DecodeModel>(model.graph), {.threads = 2});
  const auto text = random_tokens(41, 97, 3), left = random_tokens(20, 97, 4),
             right = random_tokens(20, 97, 5);
  const SequenceId a = session.open();
  feed(session, a, text, {41});
  const int64_t before = session.pool().free_pages();
  const SequenceId b = session.fork(a);
  EXPECT_EQ(before - session.pool().free_pages(), 1);  // two full pages are shared, the third is copied
  const auto got_a = feed(session, a, left, {1}).back(), got_b = feed(session, b, right, {7}).back();
  for (const auto& [more, got] : {std::pair{left, got_a}, {right, got_b}}) {
    std::vector<int64_t> all = text;
    all.insert(all.end(), more.begin(), more.end());
    const SequenceId c = session.open();
    EXPECT_EQ(feed(session, c, all, {64}).back(), got);
    session.close(c);
  }
  session.close(a);
  session.close(b);
  EXPECT_EQ(session.pool().free_pages(), session.pool().pages());
}

TEST(DecodeSession, RunsOutOfPagesWithoutHarm) {
  const model::Model model = tiny_llama();
  const auto prepared = std::make_shared<DecodeModel>(model.graph);
  const int64_t page = 3 * 2 * 2 * 16 * 8 * 4;  // layers, keys and values, heads, tokens, channels, bytes
  DecodeSession session(prepared, {.threads = 1, .cache_bytes = 4 * page + 100, .max_sequences = 3});
  EXPECT_EQ(session.pool().pages(), 4);
  const auto tokens = random_tokens(50, 97, 6);
  const SequenceId a = session.open(), b = session.open();
  const auto first = feed(session, a, std::span(tokens).first(40), {40}).back();
  const DecodePiece too_much{b, std::span(tokens).first(17)};
  try {
    session.step({&too_much, 1});
    FAIL() << "two pages where one is free";
  } catch (const base::Error& e) {
    EXPECT_EQ(e.code(), base::ErrorCode::exhausted) << e.message();
  }
  EXPECT_EQ(session.pool().free_pages(), 1);
  EXPECT_EQ(feed(session, b, std::span(tokens).first(16), {16}).size(), 1u);
  session.close(a);
  session.close(b);
  const SequenceId c = session.open();
  EXPECT_EQ(feed(session, c, std::span(tokens).first(40), {11}).back(), first);
  session.open();
  session.open();
  EXPECT_THROW(session.open(), base::Error);
}

TEST(DecodeSession, RefusesWhatDoesNotFit) {
  const model::Model model = tiny_llama();
  DecodeSession session(std::make_shared<DecodeModel>(model.graph), {.threads = 1, .max_tokens = 100});
  const SequenceId id = session.open();
  const auto tokens = random_tokens(161, 97, 7);
  const auto fails = [&](std::vector<DecodePiece> pieces) {
    try {
      session.step(pieces);
    } catch (const base::Error& e) {
      return e.code() == base::ErrorCode::invalid_argument;
    }
    return false;
  };
  EXPECT_TRUE(fails({}));
  EXPECT_TRUE(fails({{id, std::span(tokens).first(0)}}));
  EXPECT_TRUE(fails({{id, std::span(tokens).first(101)}}));
  EXPECT_TRUE(fails({{id, std::span(tokens).first(2)}, {id, std::span(tokens).first(2)}}));
  const std::vector<int64_t> strange{5, 97};
  EXPECT_TRUE(fails({{id, strange}}));
  EXPECT_FALSE(fails({{id, std::span(tokens).first(100)}}));
  EXPECT_TRUE(fails({{id, std::span(tokens).first(61)}}));
  EXPECT_FALSE(fails({{id, std::span(tokens).first(60)}}));
  EXPECT_TRUE(fails({{id, std::span(tokens).first(1)}}));
}

TEST(DecodeSession, LowPrecisionIsNear) {
  const model::Model model = tiny_llama();
  const auto tokens = random_tokens(50, 97, 8);
  const auto run = [&](const DecodeOptions& o) {
    DecodeSession session(std::make_shared<DecodeModel>(model.graph, o), o);
    return feed(session, session.open(), tokens, {30, 1, 19}).back();
  };
  const auto want = run({.threads = 2});
  for (const passes::Precision p :
       {passes::Precision::f32, passes::Precision::bf16, passes::Precision::f16}) {
    for (const tensor::DType cache :
         {tensor::DType::f32, tensor::DType::bf16, tensor::DType::f16, tensor::DType::i8}) {
      const auto got = run({.threads = 2, .cache_type = cache, .strategy = {.precision = {.compute = p}}});
      const bool is_exact = p == passes::Precision::f32 && cache == tensor::DType::f32;
      EXPECT_LE(difference(got, want), is_exact ? 0 : 0.02);
    }
  }
}

TEST(DecodeSession, RunsOnADevice) {
  const auto device = tests::cuda_device();
  if (!device) GTEST_SKIP() << tests::kNoGpu;
  for (const model::Model& model : {tiny_llama(), tiny_gpt2()}) {
    const auto tokens = random_tokens(40, 60, 9), other = random_tokens(40, 60, 10);
    const auto run = [&](const DecodeOptions& o) {
      DecodeSession session(std::make_shared<DecodeModel>(model.graph, o), o);
      const SequenceId a = session.open(), b = session.open();
      std::vector<float> last;
      for (size_t at = 0; at < 40; at += 10) {  // prefill next to decoding, then the recorded program again
        feed(session, b, std::span(other).subspan(at / 10, 1), {1});
        const DecodePiece pieces[] = {{a, std::span(tokens).subspan(at, 10)},
                                      {b, std::span(other).subspan(10 + at / 10, 1)}};
        const auto logits = session.step(pieces);
        last.assign(logits.begin(), logits.end());
      }
      EXPECT_EQ(session.ranks().first().host_operators(), "");
      const SequenceId c = session.fork(a);
      const auto more = feed(session, c, std::span(other).first(3), {1});
      last.insert(last.end(), more.back().begin(), more.back().end());
      return last;
    };
    const auto want = run({.threads = 2});
    EXPECT_LT(difference(run({.device = *device, .threads = 1}), want), 1e-4) << model.name;
    EXPECT_LT(difference(run({.device = *device,
                              .threads = 1,
                              .cache_type = tensor::DType::bf16,
                              .strategy = {.precision = {.compute = passes::Precision::bf16}}}),
                         want),
              0.05)
        << model.name;
    const DecodeOptions codes{.threads = 1, .cache_type = tensor::DType::i8};
    DecodeOptions there = codes;
    there.device = *device;
    EXPECT_LT(difference(run(there), run(codes)), 1e-2) << model.name << " in codes";
  }
}

TEST(DecodeSession, DrawsFromItsLogits) {
  const model::Model model = tiny_llama();
  std::vector<std::string> devices{"cpu"};
  if (const auto device = tests::cuda_device()) devices.push_back(*device);
  for (const std::string& device : devices) {
    const DecodeOptions o{.device = device, .threads = 1, .share_prefixes = false, .max_sequences = 4};
    DecodeSession session(std::make_shared<DecodeModel>(model.graph, o), o);
    EXPECT_EQ(session.depth(), device == "cpu" ? 1 : 2);
    std::vector<int64_t> text = random_tokens(20, 97, 11);
    const SequenceId drawn = session.open(), stepped = session.open();
    const SamplingOptions likeliest{.temperature = 0};
    for (int i = 0; i < 4; ++i) {
      const size_t from = i == 0 ? 0 : text.size() - 1;
      const DecodePiece piece{.sequence = stepped, .tokens = std::span(text).subspan(from)};
      const auto logits = session.step({&piece, 1});
      const auto best = std::max_element(logits.begin(), logits.end());
      double sum = 0;
      for (float v : logits) sum += std::exp(double{v} - double{*best});
      DecodePiece next{.sequence = drawn, .sampling = &likeliest, .position = i};
      if (i == 0) next.tokens = text;
      if (i > 0) next.chosen = 0;  // the token drawn by the previous step
      session.launch({&next, 1});
      const DecodeSession::Drawn got = session.collect();
      ASSERT_EQ(got.tokens.size(), 1u);
      EXPECT_EQ(got.tokens[0], best - logits.begin()) << device;
      EXPECT_NEAR(double{got.log_probabilities[0]}, -std::log(sum), 1e-3) << device;
      text.push_back(best - logits.begin());
    }
    const DecodePiece strange{.sequence = drawn, .chosen = 1, .sampling = &likeliest};
    EXPECT_THROW(session.launch({&strange, 1}), base::Error);
    EXPECT_THROW(session.collect(), base::Error);
  }
}

TEST(DecodeSession, DrawsBehindEachTokenAndTakesTokensBack) {
  const DecodeOptions o{.threads = 1, .page_tokens = 4, .share_prefixes = false, .max_sequences = 12};
  DecodeSession session(std::make_shared<DecodeModel>(tiny_llama().graph, o), o);
  const SamplingOptions drawn{.temperature = 0.8, .seed = 5}, likeliest{.temperature = 0};
  const std::vector<TokenBias> biases{{3, 2.0f}};
  const auto prompt = random_tokens(10, 97, 12), other = random_tokens(30, 97, 13);
  const auto next = [&](SequenceId id, std::span<const int64_t> tokens, int64_t position) {
    const DecodePiece piece{
        .sequence = id, .tokens = tokens, .sampling = &drawn, .position = position, .biases = biases};
    session.launch({&piece, 1});
    const DecodeSession::Drawn got = session.collect();
    return std::pair{got.tokens[0], got.log_probabilities[0]};
  };
  // One token at a time.
  std::vector<int64_t> text = prompt;
  std::vector<float> logs;
  const SequenceId alone = session.open();
  for (int64_t i = 0; i < 7; ++i) {
    const auto [token, log] = next(alone, std::span(text).subspan(i == 0 ? 0 : text.size() - 1), i);
    text.push_back(token);
    logs.push_back(log);
  }
  // The prompt, then four tokens at a time, the last of which is wrong, between two other sequences.
  const SequenceId first = session.open(), mine = session.open(), last = session.open();
  EXPECT_EQ(next(mine, prompt, 0), std::pair(text[10], logs[0]));
  const int64_t free = session.pool().free_pages();
  std::vector<int64_t> guessed(text.begin() + 10, text.begin() + 13);
  guessed.push_back((text[13] + 1) % 97);
  const DecodePiece pieces[] = {
      {.sequence = first, .tokens = std::span(other).first(9), .sampling = &likeliest},
      {.sequence = mine,
       .tokens = guessed,
       .sampling = &drawn,
       .position = 1,
       .biases = biases,
       .draws_each = true},
      {.sequence = last, .tokens = std::span(other).first(3), .scored = std::span(other).subspan(1, 3)}};
  session.launch(pieces);
  const DecodeSession::Drawn got = session.collect();
  ASSERT_EQ(got.tokens.size(), 8u);  // three pieces, plus three more rows of the second and two of the third
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(got.tokens[3 + i], text[11 + i]) << i;
    EXPECT_EQ(got.log_probabilities[3 + i], logs[1 + i]) << i;
  }
  EXPECT_EQ(session.length(mine), 14);
  session.shrink(mine, 13);
  session.close(first);
  session.close(last);
  EXPECT_EQ(session.pool().free_pages(), free - 1);  // for 13 tokens
  EXPECT_EQ(next(mine, std::span(text).subspan(13, 1), 4), std::pair(text[14], logs[4]));
  session.shrink(mine, 10);
  EXPECT_EQ(session.pool().free_pages(), free);
  EXPECT_EQ(next(mine, std::span(text).subspan(10, 4), 4), std::pair(text[14], logs[4]));
  EXPECT_THROW(session.shrink(mine, 15), base::Error);
  const SamplingOptions counted{.presence_penalty = 1};
  const DecodePiece refused{.sequence = mine, .tokens = guessed, .sampling = &counted, .draws_each = true};
  EXPECT_THROW(session.launch({&refused, 1}), base::Error);
}

}  // namespace
}  // namespace trireme::engine
