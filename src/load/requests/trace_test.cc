// Traces, their replay and mixes: forms, refusals, times, shares.
#include "load/requests/trace.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/clock.h"
#include "base/error.h"
#include "load/requests/mix.h"

namespace trireme::load {
namespace {

TEST(Trace, AzuresForm) {
  const auto trace = parse_trace(
      "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
      "2023-11-16 23:59:59.9799600,4808,10\r\n"
      "2023-11-17 00:00:00.0319601,3180,8\r\n"
      "2023-11-17T00:00:02Z,5,8");
  ASSERT_EQ(trace.size(), 3u);
  EXPECT_EQ(trace[0].at_ns, 0);
  EXPECT_EQ(trace[1].at_ns, 52'000'100);
  EXPECT_EQ(trace[2].at_ns, 2'020'040'000);
  EXPECT_EQ(trace[1].length, 3180);
}

TEST(Trace, OtherForms) {
  const auto lines = parse_trace(
      "{\"timestamp\": 3000, \"input_length\": 7, \"hash_ids\": [1]}\n{\"timestamp\": 1000.5, \"model\": "
      "\"m\"}\n");
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0].model, "m");  // sorted by time
  EXPECT_EQ(lines[1].at_ns, 1'999'500'000);
  EXPECT_EQ(lines[1].length, 7);
  const auto gaps = parse_trace("100\n250.5\n0\n");
  ASSERT_EQ(gaps.size(), 3u);
  EXPECT_EQ(gaps[0].at_ns, 100'000);
  EXPECT_EQ(gaps[2].at_ns, 350'500);
  const auto seconds = parse_trace("timestamp,model\n10.5,a\n\n11,\"b\"\n");
  ASSERT_EQ(seconds.size(), 2u);
  EXPECT_EQ(seconds[1].at_ns, 500'000'000);
  EXPECT_EQ(seconds[1].model, "b");
}

TEST(Trace, RefusalsNameTheLine) {
  const std::vector<std::pair<const char*, const char*>> bad = {
      {"", "no arrivals"},
      {"a,b\n1,2\n", "line 1"},
      {"timestamp\nx\n", "line 2"},
      {"timestamp\n2023-02-30 00:00:00\n", "line 2"},
      {"timestamp,length\n1,-4\n", "line 2"},
      {"timestamp,length\n1\n", "line 2"},
      {"timestamp\n1e300\n", "line 2"},
      {"10\nx\n", "line 2"},
      {"10\n-1\n", "line 2"},
      {"{\"timestamp\": 1}\n{\"time\": 2}\n", "line 2"},
      {"{\"timestamp\": 1\n", "line 1"},
  };
  for (const auto& [text, word] : bad) {
    try {
      parse_trace(text);
      FAIL() << text;
    } catch (const base::Error& e) {
      EXPECT_NE(e.message().find(word), std::string::npos) << text << ": " << e.message();
    }
  }
}

TEST(Trace, ReplayKeepsTheTimesDividedBySpeed) {
  const auto trace = parse_trace("1000\n2000\n0\n");
  TracePacer pacer(trace, {5, 6, 7}, 2);
  base::FakeClock clock;
  std::vector<Send> sends;
  while (!pacer.done()) {
    clock.sleep_until(pacer.next_ns());
    sends.push_back(pacer.take(clock.now_ns()));
    clock.advance(100);  // being late does not move the next one
  }
  ASSERT_EQ(sends.size(), 3u);
  EXPECT_EQ(sends[0].scheduled_ns, 500'000);
  EXPECT_EQ(sends[1].scheduled_ns, 1'500'000);
  EXPECT_EQ(sends[2].scheduled_ns, 1'500'000);
  EXPECT_EQ(sends[2].request, 7u);
  EXPECT_EQ(pacer.next_ns(), Pacer::kNever);
  EXPECT_THROW(TracePacer(trace, {1, 2, 3}, 0), base::Error);
}

TEST(Mix, SharesAreExactAndOrderIsDrawn) {
  const auto deck = shuffled_shares({3, 1, 4}, 800, 1);
  EXPECT_EQ(std::count(deck.begin(), deck.end(), 0u), 300);
  EXPECT_EQ(std::count(deck.begin(), deck.end(), 1u), 100);
  EXPECT_EQ(std::count(deck.begin(), deck.end(), 2u), 400);
  EXPECT_FALSE(std::is_sorted(deck.begin(), deck.end()));
  EXPECT_EQ(deck, shuffled_shares({3, 1, 4}, 800, 1));
  EXPECT_NE(deck, shuffled_shares({3, 1, 4}, 800, 2));
  // Every part of the run has the mix: 100 cards hold about 37.5 of the first class.
  const auto part = std::count(deck.begin(), deck.begin() + 100, 0u);
  EXPECT_GT(part, 20);
  EXPECT_LT(part, 55);
}

TEST(Mix, EntriesTakeWhatIsSent) {
  LoadOptions defaults;
  defaults.url = "http://h";
  defaults.batch = 2;
  const auto entries = parse_mix(base::parse_json(R"({"mix": [
      {"model": "a", "weight": 3, "shape": ["x:1,8"], "format": "json"},
      {"name": "big", "model": "a", "batch": 8}]})"),
                                 defaults);
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_EQ(entries[0].name, "a");
  EXPECT_EQ(entries[0].weight, 3);
  EXPECT_EQ(entries[0].options.batch, 2);
  EXPECT_EQ(entries[0].options.format, Format::json);
  EXPECT_EQ(entries[1].options.batch, 8);
  EXPECT_EQ(entries[1].options.url, "http://h");
  for (const char* bad :
       {R"({"mix": []})", R"({"mix": [{"model": "a", "url": "x"}]})", R"({"mix": [{}]})",
        R"({"mix": [{"model": "a"}, {"model": "a"}]})", R"({"other": 1})",
        R"({"mix": [{"model": "a", "weight": 0}]})", R"({"mix": [{"model": "a", "batch": 0}]})"}) {
    EXPECT_THROW(parse_mix(base::parse_json(bad), defaults), base::Error) << bad;
  }
}

TEST(Mix, ATraceNamesItsClasses) {
  Payload payload;
  payload.requests = {"a0", "a1", "b0"};
  const auto trace = parse_trace("timestamp,model\n1,b\n2,a\n3,a\n4,a\n5,\n6,\n");
  EXPECT_EQ(requests_of(trace, payload), (std::vector<size_t>{0, 1, 2, 0, 1, 2}));  // no classes: in turn
  payload.classes = {"a", "b"};
  payload.class_of = {0, 0, 1};
  payload.order = {2, 0};
  EXPECT_EQ(requests_of(trace, payload), (std::vector<size_t>{2, 0, 1, 0, 2, 0}));
  EXPECT_THROW(requests_of(parse_trace("timestamp,model\n1,c\n"), payload), base::Error);
}

}  // namespace
}  // namespace trireme::load
