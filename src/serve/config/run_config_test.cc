// Tests what the parameters of a model's configuration change, and which values are refused.
#include "serve/config/run_config.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace trireme::serve {
namespace {

TEST(RunConfig, ReadsWhatItKnowsAndLeavesTheRest) {
  const RunConfig none = RunConfig::of({{"model's_own", "x"}});
  EXPECT_EQ(none.precision, passes::Precision::f32);
  EXPECT_EQ(none.threads, 0);
  EXPECT_TRUE(none.buckets.empty());
  EXPECT_FALSE(none.window_ns || none.is_deadline_aware || none.loop_ns);
  const RunConfig all = RunConfig::of({{"precision", "bf16"},
                                       {"threads", "3"},
                                       {"buckets", "1,4,16"},
                                       {"batch_window", "2ms"},
                                       {"deadline_aware", "true"},
                                       {"loop_timeout", "500ms"}});
  EXPECT_EQ(all.precision, passes::Precision::bf16);
  EXPECT_EQ(RunConfig::of({{"precision", "fp8"}}).precision, passes::Precision::fp8);
  EXPECT_EQ(all.threads, 3);
  EXPECT_EQ(all.buckets, (std::vector<int64_t>{1, 4, 16}));
  EXPECT_EQ(all.window_ns, 2'000'000);
  EXPECT_EQ(all.is_deadline_aware, true);
  EXPECT_EQ(all.loop_ns, 500'000'000);
}

TEST(RunConfig, RefusesValuesThatMeanNothing) {
  using Parameter = std::pair<std::string, std::string>;
  for (const Parameter& bad : std::vector<Parameter>{{"precision", "int4"},
                                                     {"threads", "-1"},
                                                     {"buckets", "0"},
                                                     {"buckets", "1,,2"},
                                                     {"batch_window", "soon"},
                                                     {"deadline_aware", "perhaps"},
                                                     {"weight_group", "32"},
                                                     {"draft", "small.gguf"},
                                                     {"pad_inputs", "x"}}) {
    EXPECT_THROW(RunConfig::of({bad}), base::Error) << bad.first << " = " << bad.second;
  }
}

}  // namespace
}  // namespace trireme::serve
