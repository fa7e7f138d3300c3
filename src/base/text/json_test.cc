// Tests JSON: every value reads back, numbers are exact, and invalid text is refused with its position.
#include "base/text/json.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "base/error.h"
#include "base/utf8.h"
#include "tests/work_growth.h"

namespace trireme::base {
namespace {

std::string json_error(std::string_view text, const JsonLimits& limits = {}) {
  try {
    parse_json(text, limits);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
    return e.message();
  }
  return "";
}

TEST(Json, BuildsDumpsAndParsesBack) {
  Json json =
      Json::object({{"name", "m"}, {"ok", true}, {"none", nullptr}, {"big", 18446744073709551615ull}});
  json.set("shape", Json::array({-1, 3, 244}));
  json["nested"]["x"] = 0.1;
  EXPECT_EQ(json.dump(), R"({"name":"m","ok":true,"none":null,"big":18446744073709551615,)"
                         R"("shape":[-1,3,244],"nested":{"x":0.1}})");
  EXPECT_EQ(parse_json(json.dump()), json);
  EXPECT_EQ(parse_json(json.dump({.indent = 2})), json);
  EXPECT_EQ(Json::object({{"a", Json::array({1})}}).dump({.indent = 2}), "{\n  \"a\": [\n    1\n  ]\n}");
  EXPECT_EQ(Json::object().dump({.indent = 2}), "{}");
}

/// With 200,000 members, a linear search for each member would take minutes.
TEST(Json, LargeObjectsAreBuiltAndSearchedInTimeOfTheirSize) {
  const auto build_and_search = [](int64_t members) {
    Json json = Json::object();
    for (int64_t i = 0; i < members; ++i) json.set(std::to_string(i * 7919), i);
    for (int64_t i = 0; i < members; ++i) json.set(std::to_string(i * 7919), -i);
    ASSERT_EQ(json.size(), static_cast<size_t>(members));
    const Json copy = json;
    for (int64_t i = 0; i < members; ++i) ASSERT_EQ(copy.at(std::to_string(i * 7919)).as_int(), -i);
    EXPECT_FALSE(copy.contains("none"));
    EXPECT_EQ(copy.as_object().begin()->key, "0");  // members keep their order
    EXPECT_EQ((copy.as_object().end() - 1)->key, std::to_string((members - 1) * 7919));
  };
  EXPECT_LT(tests::growth_over_eight(5'000, build_and_search), tests::kMostLinearGrowth);
}

/// The parser reports duplicate keys only at the end of the object.
TEST(Json, EqualKeysWithoutNumberAreReadInTimeOfTheirSize) {
  const auto read = [](int64_t members) {
    std::string text = "{";
    for (int64_t i = 0; i < members; ++i) text += "\"k\":0,";
    text.back() = '}';
    EXPECT_NE(json_error(text).find("duplicate key 'k'"), std::string::npos);
  };
  EXPECT_LT(tests::growth_over_eight(20'000, read), tests::kMostLinearGrowth);
}

TEST(Json, TheFirstOfTwoEqualKeysIsFoundHoweverManyMembersThereAre) {
  for (const int members : {2, 15, 16, 17, 40, 43, 1000}) {
    JsonObject object;
    for (int round = 0; round < 2; ++round) {
      for (int i = 0; i < members; ++i) object.push_back({std::to_string(i), Json(round)});
    }
    for (int i = 0; i < members; ++i) ASSERT_EQ(object.find(std::to_string(i))->as_int(), 0) << members;
    Json json(object);
    json.set("1", 5);  // replaces the first member of that name
    EXPECT_EQ(json.at("1").as_int(), 5);
    EXPECT_EQ(json.size(), static_cast<size_t>(2 * members));
    EXPECT_TRUE(json.as_object().erase("0"));
    EXPECT_FALSE(json.as_object().erase("0"));
    EXPECT_EQ(json.find("0"), nullptr);
    EXPECT_EQ(json.at("1").as_int(), 5);
    EXPECT_EQ(json.size(), static_cast<size_t>(2 * members - 2));
  }
}

TEST(Json, AccessNamesWhatIsWrong) {
  const Json json = parse_json(R"({"n": 3, "s": "x", "f": 1.5, "neg": -1, "list": [1]})");
  EXPECT_EQ(json.at("n").as_int(), 3);
  EXPECT_EQ(json.at("n").as_double(), 3.0);
  EXPECT_EQ(json.get_or("absent", 7), 7);
  EXPECT_EQ(json.get_or("s", "y"), "x");
  EXPECT_EQ(json.get_or("f", 0.0), 1.5);
  EXPECT_EQ(json.find("absent"), nullptr);
  EXPECT_THROW(json.at("absent"), Error);
  EXPECT_THROW(json.at("s").as_int(), Error);
  EXPECT_THROW(json.at("f").as_int(), Error);
  EXPECT_THROW(json.at("neg").as_uint(), Error);
  EXPECT_THROW(json.at("list").at(1), Error);
  EXPECT_THROW(parse_json(R"({"n": 3000000000})").get_or("n", 0), Error);
}

TEST(Json, NumbersAreExact) {
  std::mt19937_64 rng(1);
  for (int i = 0; i < 20000; ++i) {
    const uint64_t bits = rng();
    double value = 0;
    std::memcpy(&value, &bits, sizeof value);
    if (!std::isfinite(value)) continue;
    ASSERT_EQ(parse_json(Json(value).dump()).as_double(), value);
    float narrow = 0;
    std::memcpy(&narrow, &bits, sizeof narrow);
    if (!std::isfinite(narrow)) continue;
    std::string text;
    append_json(text, narrow);
    ASSERT_EQ(static_cast<float>(parse_json(text).as_double()), narrow);
  }
  EXPECT_EQ(parse_json("9007199254740993.0").as_double(), 9007199254740992.0);  // a tie rounds to even
  EXPECT_EQ(parse_json("9007199254740993.00000000000000000000000000000000001").as_double(),
            9007199254740994.0);
  EXPECT_EQ(parse_json("2.2250738585072011e-308").as_double(), 2.2250738585072011e-308);
  EXPECT_EQ(parse_json("1e-400").as_double(), 0.0);
  EXPECT_EQ(parse_json("-9223372036854775808").as_int(), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(parse_json("9223372036854775807").as_int(), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(parse_json("9223372036854775808").as_uint(), 9223372036854775808ull);
  EXPECT_EQ(parse_json("18446744073709551616").as_double(), 18446744073709551616.0);
  EXPECT_NE(json_error("1e400"), "");
  EXPECT_EQ(Json(5.0).dump(), "5.0");
  EXPECT_EQ(Json(1e300).dump(), "1e+300");
}

TEST(Json, NanAndInfinityOnlyByOption) {
  const double infinity = std::numeric_limits<double>::infinity();
  const JsonLimits loose{.nan_and_infinity = true};
  const Json json = parse_json("[NaN, Infinity, -Infinity, Inf, 1]", loose);
  EXPECT_TRUE(std::isnan(json.at(0).as_double()));
  EXPECT_EQ(json.at(1).as_double(), infinity);
  EXPECT_EQ(json.at(2).as_double(), -infinity);
  EXPECT_EQ(json.dump({.nan_and_infinity = true}), "[NaN,Infinity,-Infinity,Infinity,1]");
  EXPECT_NE(json_error("NaN"), "");
  EXPECT_THROW(json.dump(), Error);
}

TEST(Json, StringsAreUtf8AndEscaped) {
  const std::string text = "q\" b\\ n\n t\t \x01 \x7f h\xC3\xA9 \xF0\x9F\x98\x80 \xEF\xBF\xBD";
  EXPECT_EQ(parse_json(Json(text).dump()).as_string(), text);
  EXPECT_EQ(Json("\x01").dump(), "\"\\u0001\"");
  EXPECT_EQ(parse_json(R"("\ud83d\ude00\u0000")").as_string(), std::string("\xF0\x9F\x98\x80\0", 5));
  for (const char* bad :
       {"\"\xFF\"", "\"\xC0\x80\"", "\"\xED\xA0\x80\"", "\"\xE2\x82\"", "\"\xF4\x90\x80\x80\"", R"("\ud800")",
        R"("\udc00")", R"("\ud800\u0041")", "\"\n\"", "{\"\\udfff\":1}"}) {
    EXPECT_NE(json_error(bad), "") << bad;
  }
  // Output is always valid UTF-8, even where a string holds invalid bytes.
  EXPECT_EQ(Json("a\xFFz\xE2\x82").dump(), "\"a\xEF\xBF\xBDz\xEF\xBF\xBD\"");
}

TEST(Json, RefusesWithReasonAndPlace) {
  EXPECT_NE(json_error(std::string(101, '[') + std::string(101, ']'))
                .find("JSON nesting depth exceeds maximum allowed limit (100)"),
            std::string::npos);
  EXPECT_EQ(json_error(std::string(100, '[') + std::string(100, ']')), "");
  EXPECT_NE(json_error(std::string(3000000, '[')), "");
  EXPECT_NE(json_error(R"({"a":1,"b":{"a":2},"a":3})").find("duplicate key 'a'"), std::string::npos);
  EXPECT_EQ(json_error(R"([{"a":1},{"a":1,"b":{"a":2}}])"), "");
  EXPECT_NE(json_error("[1, 2,]").find("6"), std::string::npos);
  std::string keys = "{\"\":0";
  for (int i = 0; i < 2'000'000; ++i) keys += ",\"\":0";
  EXPECT_NE(json_error(keys).find("too many keys"), std::string::npos);
  EXPECT_NE(json_error("[1]", {.size_bytes = 2}).find("too large"), std::string::npos);
  for (const std::string& bad :
       {std::string(""), std::string(" "), std::string("{}x"), std::string("[1] [2]"), std::string("{}\0", 3),
        std::string("{\"a\" 1}"), std::string("01"), std::string("+1"), std::string("'a'"),
        std::string("tru"), std::string("{a:1}"), std::string("1.")}) {
    EXPECT_NE(json_error(bad), "") << bad;
  }
}

TEST(Json, EventsCarryNumbersWithoutNodes) {
  struct Sum : JsonHandler {
    void null() override {}
    void boolean(bool) override {}
    void integer(int64_t v) override { sum += static_cast<double>(v), ++count; }
    void big_integer(uint64_t) override {}
    void real(double v) override { sum += v, ++count; }
    void string(std::string_view) override { throw Error(ErrorCode::invalid_argument, "no strings here"); }
    void key(std::string_view) override {}
    void start_object() override {}
    void end_object() override {}
    void start_array() override {}
    void end_array() override {}
    double sum = 0;
    int count = 0;
  } sum;
  std::string text = "{\"data\":[";
  for (int i = 0; i < 100000; ++i) text += i == 0 ? "1" : ",0.5";
  parse_json(text + "]}", sum);
  EXPECT_EQ(sum.count, 100000);
  EXPECT_EQ(sum.sum, 1 + 0.5 * 99999);
  EXPECT_THROW(parse_json("[\"x\"]", sum), Error);
}

TEST(Json, MutatedTextNeverCrashes) {
  const std::string seed =
      R"({"id":"1","inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":[1,-2.5e3,0.1,4]}]})";
  std::mt19937 rng(7);
  for (int round = 0; round < 20000; ++round) {
    std::string text = seed;
    for (int k = 0; k < 3; ++k) text[rng() % text.size()] = static_cast<char>(rng());
    try {
      const Json json = parse_json(text, {.nan_and_infinity = true});
      const JsonDumpOptions loose{.nan_and_infinity = true};
      ASSERT_EQ(parse_json(json.dump(loose), {.nan_and_infinity = true}).dump(loose), json.dump(loose));
    } catch (const Error& e) {
      ASSERT_EQ(e.code(), ErrorCode::invalid_argument);
    }
  }
}

}  // namespace
}  // namespace trireme::base
