// Tests rates: a possible one prints with its share of the peak, an impossible one is refused with a message.
#include "base/report/rate.h"

#include <gtest/gtest.h>

#include <limits>

namespace trireme::base {
namespace {

TEST(Rate, BesideItsCeiling) {
  const Rate rate(2e9, 0.02, {200e9, "products"});
  EXPECT_EQ(rate.per_s(), 100e9);
  EXPECT_EQ(rate.share(), 0.5);
  EXPECT_EQ(rate.text(1e9, "GFLOP"), "100.0 GFLOP/s (50 % of products)");
  Json json = Json::object();
  rate.write(json, "gflop_per_s", 1e9);
  EXPECT_EQ(json.at("gflop_per_s").as_double(), 100);
  EXPECT_EQ(json.at("gflop_per_s_share").as_double(), 0.5);
}

TEST(Rate, AboveItsCeilingIsRefused) {
  const Rate rate(2.98e12, 1, {0.2e12, "products"});
  EXPECT_FALSE(rate.per_s());
  EXPECT_FALSE(rate.share());
  EXPECT_EQ(rate.text(1e12, "TFLOP"),
            "no rate in TFLOP/s: the count would be 1490 % of products, so less was done than was counted");
  Json json = Json::object();
  rate.write(json, "tflop_s", 1e12);
  EXPECT_TRUE(json.at("tflop_s").is_null());
  EXPECT_NE(json.at("tflop_s_refused").as_string().find("1490 %"), std::string::npos);
  EXPECT_TRUE(Rate(1.1, 1, {1, "products"}).per_s()) << "within the noise of two measurements";
  EXPECT_FALSE(Rate(1.2, 1, {1, "products"}).per_s());
}

TEST(Rate, WithoutACeilingHasNoShare) {
  const Rate rate(3, 2);
  EXPECT_EQ(rate.per_s(), 1.5);
  EXPECT_FALSE(rate.share());
  EXPECT_EQ(rate.text(1, "GB"), "1.50 GB/s");
}

TEST(Rate, OfNothingIsNone) {
  EXPECT_FALSE(Rate(0, 1).per_s());
  EXPECT_FALSE(Rate(1, 0).per_s());
  EXPECT_FALSE(Rate(std::numeric_limits<double>::quiet_NaN(), 1).per_s());
  EXPECT_EQ(Rate(0, 1).text(1, "GB"), "no rate in GB/s: nothing was counted");
}

}  // namespace
}  // namespace trireme::base
