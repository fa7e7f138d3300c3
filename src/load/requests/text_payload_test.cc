// Prompts of stated lengths, and what they share.
#include "load/requests/text_payload.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace trireme::load {
namespace {

const std::vector<int64_t> kVocabulary{3, 5, 8, 13, 21, 34, 55};

TEST(TextPayload, LengthsComeFromTheTraceWhereItHasThem) {
  LoadOptions options;
  options.text.prompt_tokens = 40;
  options.text.answer_tokens = 7;
  const std::vector<Arrival> trace = parse_trace(
      "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.97,4808,10\n2023-11-16 "
      "18:17:04.03,0,8\n");
  const std::vector<TextLengths> lengths = text_lengths(options, trace);
  ASSERT_EQ(lengths.size(), 2u);
  EXPECT_EQ(lengths[0].prompt, 4808);
  EXPECT_EQ(lengths[0].answer, 10);
  EXPECT_EQ(lengths[1].prompt, 40);
  EXPECT_EQ(lengths[1].answer, 8);
  options.requests = 12;  // counted ones: warm-ups and further runs send others
  EXPECT_EQ(text_lengths(options, {}).size(), 2000u);
  EXPECT_EQ(text_lengths(options, {})[1999].prompt, 40);
  EXPECT_THROW(parse_trace("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.97,48,-1\n"),
               base::Error);
}

TEST(TextPayload, LengthsOfAFileComeAgainWithOtherPrompts) {
  LoadOptions options;
  options.text.lengths = "lengths.jsonl";
  options.requests = 5;
  const std::vector<TextLengths> lengths =
      text_lengths(options, parse_trace("{\"timestamp\":0,\"input_length\":30,\"output_length\":5}\n"
                                        "{\"timestamp\":9,\"input_length\":70,\"output_length\":6}\n"));
  ASSERT_EQ(lengths.size(), 2000u);
  for (size_t i = 0; i < lengths.size(); ++i) {
    EXPECT_EQ(lengths[i].prompt, i % 2 == 0 ? 30 : 70);
    EXPECT_EQ(lengths[i].answer, i % 2 == 0 ? 5 : 6);
  }
  EXPECT_NE(draw_prompt(lengths[0], kVocabulary, 1, 0), draw_prompt(lengths[2], kVocabulary, 1, 2));
}

TEST(TextPayload, PromptsHaveTheirLengthAndShareTheirBlocksAlone) {
  const std::vector<Arrival> trace = parse_trace(
      "{\"timestamp\":0,\"input_length\":1500,\"output_length\":5,\"hash_ids\":[4,9,2]}\n"
      "{\"timestamp\":9,\"input_length\":1400,\"output_length\":5,\"hash_ids\":[4,9,3]}\n"
      "{\"timestamp\":9,\"input_length\":300,\"output_length\":5,\"hash_ids\":[4]}\n");
  std::vector<std::vector<int64_t>> prompts;
  for (const TextLengths& l : text_lengths({}, trace)) {
    prompts.push_back(draw_prompt(l, kVocabulary, 1, prompts.size()));
    EXPECT_EQ(static_cast<int64_t>(prompts.back().size()), l.prompt);
    for (int64_t id : prompts.back())
      EXPECT_TRUE(std::find(kVocabulary.begin(), kVocabulary.end(), id) != kVocabulary.end());
  }
  const auto same = [&](size_t a, size_t b) {
    return std::mismatch(
               prompts[a].begin(),
               prompts[a].begin() + static_cast<ptrdiff_t>(std::min(prompts[a].size(), prompts[b].size())),
               prompts[b].begin())
               .first -
           prompts[a].begin();
  };
  EXPECT_GE(same(0, 1), 1024);
  EXPECT_LT(same(0, 1), 1100);
  EXPECT_EQ(same(0, 2), 300);
  const TextLengths plain{.prompt = 200};
  EXPECT_NE(draw_prompt(plain, kVocabulary, 1, 0), draw_prompt(plain, kVocabulary, 1, 1));
  EXPECT_NE(draw_prompt(plain, kVocabulary, 1, 0), draw_prompt(plain, kVocabulary, 2, 0));
  EXPECT_EQ(draw_prompt(plain, kVocabulary, 1, 7), draw_prompt(plain, kVocabulary, 1, 7));
}

}  // namespace
}  // namespace trireme::load
