// Tests options: one field list provides flags, JSON, help, documentation and the record of a run.
#include "base/text/options.h"

#include <gtest/gtest.h>

#include "base/clock.h"
#include "base/error.h"

namespace trireme::base {
namespace {

enum class Arrival { closed, poisson, fixed };

struct LoadOptions {
  std::string url;
  std::vector<std::string> files;
  int concurrency = 8;
  int64_t seed = 0;
  double rate = 2.5;
  bool verbose = false;
  bool warm_up = true;
  Duration window{50 * kNsPerMs};
  ByteSize memory{int64_t{2} << 30};
  std::vector<std::string> slo = {"p99=1s"};
  std::vector<int64_t> buckets = {1, 8};
  Arrival arrival = Arrival::closed;

  void fields(OptionList& f) {
    f.add("url", &url, "server to load").positional().required();
    f.add("files", &files, "bodies to send").positional();
    f.add("concurrency", &concurrency, "requests in flight").at_least(1).at_most(4096);
    f.add("seed", &seed, "seed of the arrival times");
    f.add("rate", &rate, "requests a second");
    f.add("verbose", &verbose, "print each request");
    f.add("warm_up", &warm_up, "send uncounted requests first");
    f.add("window", &window, "how long to wait for a fuller batch");
    f.add("memory", &memory, "memory for bodies");
    f.add("slo", &slo, "what must hold");
    f.add("buckets", &buckets, "batch sizes").at_least(1);
    f.add_choice("arrival", &arrival, {"closed", "poisson", "fixed"}, "when requests are sent");
  }
};

LoadOptions parse(const std::vector<std::string>& words) {
  LoadOptions options;
  OptionList list(options);
  EXPECT_TRUE(list.parse_flags(words));
  return options;
}

std::string flags_error(const std::vector<std::string>& words) {
  try {
    parse(words);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
    return e.message();
  }
  return "";
}

TEST(Options, FlagsSetEveryKindOfField) {
  const LoadOptions o = parse({"--concurrency", "16",        "--seed=-7", "--rate=1e2", "--verbose",
                               "--no-warm-up",  "http://h",  "--window",  "1.5s",       "--memory=512KiB",
                               "--slo",         "a",         "--slo=b",   "--buckets",  "2,4",
                               "--buckets=16",  "--arrival", "poisson",   "f1",         "--",
                               "--f2"});
  EXPECT_EQ(o.url, "http://h");
  EXPECT_EQ(o.files, (std::vector<std::string>{"f1", "--f2"}));
  EXPECT_EQ(o.concurrency, 16);
  EXPECT_EQ(o.seed, -7);
  EXPECT_EQ(o.rate, 100.0);
  EXPECT_TRUE(o.verbose);
  EXPECT_FALSE(o.warm_up);
  EXPECT_EQ(o.window.ns, 1'500'000'000);
  EXPECT_EQ(o.memory.bytes, 512 << 10);
  EXPECT_EQ(o.slo, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(o.buckets, (std::vector<int64_t>{2, 4, 16}));
  EXPECT_EQ(o.arrival, Arrival::poisson);
}

TEST(Options, DefaultsStay) {
  const LoadOptions o = parse({"u"});
  EXPECT_EQ(o.concurrency, 8);
  EXPECT_EQ(o.slo, std::vector<std::string>{"p99=1s"});
  LoadOptions help;
  EXPECT_FALSE(OptionList(help).parse_flags(std::vector<std::string>{"--help"}));
}

TEST(Options, ErrorsSayWhatAndWhere) {
  EXPECT_EQ(flags_error({"u", "--concurency", "3"}),
            "unknown option '--concurency'; the nearest is '--concurrency'");
  EXPECT_EQ(flags_error({"u", "--concurrency", "x"}), "option --concurrency: expected an integer, found 'x'");
  EXPECT_EQ(flags_error({"u", "--concurrency", "0"}), "option --concurrency: must be at least 1, found 0");
  EXPECT_EQ(flags_error({"u", "--concurrency"}), "option --concurrency: needs a value");
  EXPECT_EQ(flags_error({"u", "--arrival=never"}),
            "option --arrival: expected one of closed, poisson, fixed; found 'never'");
  EXPECT_EQ(flags_error({}), "missing argument URL");
  for (const char* bad :
       {"--window=50", "--window=-1s", "--window=1x", "--memory=2gb", "--memory=9999999999TiB",
        "--verbose=maybe", "--no-rate", "--buckets=1,,2", "--buckets=0", "--seed=1.5", "--rate="}) {
    EXPECT_NE(flags_error({"u", bad}), "") << bad;
  }
}

TEST(Options, JsonSetsFieldsAndRecordsThem) {
  LoadOptions o;
  OptionList list(o);
  list.parse_json(
      parse_json(R"({"url": "h", "concurrency": 3, "window": "10ms", "memory": 4096, "slo": ["x", "y"],
                                 "buckets": [2], "verbose": true, "arrival": "fixed"})"));
  EXPECT_EQ(o.window.ns, 10 * kNsPerMs);
  EXPECT_EQ(o.memory.bytes, 4096);
  EXPECT_EQ(o.arrival, Arrival::fixed);
  EXPECT_TRUE(list.given("url"));
  EXPECT_FALSE(list.given("rate"));
  const Json record = list.to_json();
  LoadOptions again;
  OptionList second(again);
  second.parse_json(record);
  EXPECT_EQ(second.to_json(), record);
  EXPECT_EQ(record.at("memory").as_string(), "4KiB");
  for (const char* bad :
       {R"({"windw": "1s"})", R"({"concurrency": "many"})", R"({"concurrency": 1.5})", R"({"url": 5})",
        R"({"verbose": "yes"})", R"({"slo": "x"})", R"({"buckets": [0]})", R"([])"}) {
    EXPECT_THROW(list.parse_json(parse_json(bad)), Error) << bad;
  }
  try {
    list.parse_json(parse_json(R"({"windw": "1s"})"));
  } catch (const Error& e) {
    EXPECT_EQ(e.message(), "unknown key 'windw'; the nearest is 'window'");
  }
}

TEST(Options, HelpAndDocsShowDefaults) {
  LoadOptions o;
  OptionList list(o);
  EXPECT_EQ(list.usage(), "URL [FILES...] [options]");
  const std::string help = list.help();
  EXPECT_NE(help.find("--concurrency N"), std::string::npos) << help;
  EXPECT_NE(help.find("requests in flight (default 8)"), std::string::npos) << help;
  EXPECT_NE(help.find("how long to wait for a fuller batch (default 50ms)"), std::string::npos) << help;
  const std::string table = list.markdown();
  EXPECT_NE(table.find("| `--memory` | `memory` | BYTES | 2GiB | memory for bodies |"), std::string::npos)
      << table;
  EXPECT_NE(table.find("closed\\|poisson\\|fixed"), std::string::npos) << table;
}

TEST(Quantity, TextAndBack) {
  EXPECT_EQ(to_string(Duration{0}), "0ns");
  EXPECT_EQ(to_string(Duration{90 * kNsPerSecond}), "90s");
  EXPECT_EQ(to_string(ByteSize{0}), "0");
  EXPECT_EQ(parse_byte_size("9223372036854775807").bytes, INT64_MAX);
  EXPECT_EQ(parse_byte_size("1.5GB").bytes, 1'500'000'000);
  for (const int64_t ns : {1L, 999L, 1000L, 1'500'000L, 3'600'000'000'000L}) {
    EXPECT_EQ(parse_duration(to_string(Duration{ns})).ns, ns);
  }
}

}  // namespace
}  // namespace trireme::base
