// Tests YAML reading (types, lines, refusals) and writing (round trip).
#include "base/text/yaml.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace trireme::base {
namespace {

std::string yaml_error(std::string_view text) {
  try {
    parse_yaml(text);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
    return e.message();
  }
  return "";
}

TEST(Yaml, ScalarsFollowTheCoreSchema) {
  const Json v = parse_yaml(
                     "a: 1\nb: 1e-4\nc: -.5\nd: yes\ne: true\nf: '7'\ng: 2GiB\nh: ~\ni: inf\nj: .inf\n"
                     "k: +3\nl: 0x10\nm: 1.2.3\nn: -x\no: nan")
                     .value;
  EXPECT_EQ(v.at("a").as_int(), 1);
  EXPECT_EQ(v.at("b").as_double(), 1e-4);
  EXPECT_EQ(v.at("c").as_double(), -0.5);
  EXPECT_EQ(v.at("d").as_string(), "yes");
  EXPECT_TRUE(v.at("e").as_bool());
  EXPECT_EQ(v.at("f").as_string(), "7");
  EXPECT_EQ(v.at("g").as_string(), "2GiB");
  EXPECT_TRUE(v.at("h").is_null());
  EXPECT_EQ(v.at("i").as_string(), "inf");
  EXPECT_GT(v.at("j").as_double(), 1e308);
  EXPECT_EQ(v.at("k").as_int(), 3);
  EXPECT_EQ(v.at("l").as_string(), "0x10");
  EXPECT_EQ(v.at("m").as_string(), "1.2.3");
  EXPECT_EQ(v.at("o").as_string(), "nan");
}

TEST(Yaml, KnowsTheLineOfEveryValue) {
  const YamlDocument d =
      parse_yaml("# head\noptimizer:\n  name: adam\n  betas: [0.9,\n    0.95]\nrun:\n\n  seed: 3\n");
  EXPECT_EQ(d.line("optimizer"), 2);
  EXPECT_EQ(d.line("optimizer.name"), 3);
  EXPECT_EQ(d.line("optimizer.betas[1]"), 5);
  EXPECT_EQ(d.line("run.seed"), 8);
  EXPECT_EQ(d.line("run.sead"), 0);
}

TEST(Yaml, RefusesWithTheLine) {
  EXPECT_NE(yaml_error("a: 1\nb: 2\na: 3\n").find("line 3: key 'a' stands twice"), std::string::npos);
  EXPECT_NE(yaml_error("a: [1, 2\nb: 3").find("line "), std::string::npos);
  EXPECT_NE(yaml_error("a: 1\n---\nb: 2\n").find("one document"), std::string::npos);
  EXPECT_NE(yaml_error("#'ev:ev: x, dr x, dro-\n ,"), "");  // LoadAll of the library never returns for this
  EXPECT_NE(yaml_error("'a'\n ,"), "");
  EXPECT_NE(yaml_error("? [1, 2]\n: 3\n").find("plain word"), std::string::npos);
  EXPECT_NE(yaml_error("a: *nowhere\n"), "");
  EXPECT_NE(yaml_error(std::string(200, '[') + std::string(200, ']')), "");
  std::string laughs = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 9; ++i) {
    laughs += concat("a", i, ": &a", i, " [");
    for (int k = 0; k < 10; ++k) laughs += concat(k ? ", *a" : "*a", i - 1);
    laughs += "]\n";
  }
  EXPECT_NE(yaml_error(laughs).find("more than"), std::string::npos);
}

/// Aliases repeat long keys and words; nesting and numbers of values have limits of their own.
TEST(Yaml, AliasesDoNotMultiplyALongText) {
  const std::string many =
      "a0: &a0 [0,0,0,0,0,0,0,0,0,0]\na1: &a1 [*a0,*a0,*a0,*a0,*a0,*a0,*a0,*a0,*a0,*a0]\n"
      "a2: &a2 [*a1,*a1,*a1,*a1,*a1,*a1,*a1,*a1,*a1,*a1]\n";
  const std::string text(20000, 'k');
  EXPECT_NO_THROW(parse_yaml(many + "key: *a2\n"));
  for (const std::string& bomb : {many + text + ": *a2\n",
                                  "w: &w " + text + "\n" + many +
                                      "b: &b [*w,*w,*w,*w,*w,*w,"
                                      "*w,*w,*w,*w]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b]\n"
                                      "d: [*c,*c,*c,*c,*c,*c,*c,*c,*c,*c]\n",
                                  std::string("a: &a [*a]\n")}) {
    EXPECT_THROW(parse_yaml(bomb), Error) << bomb.substr(0, 40);
  }
}

TEST(Yaml, WritesWhatItReads) {
  const Json value = Json::object(
      {{"model", Json::object({{"source", "zoo:mlp"}, {"config", Json::array({"layers=4", "a, b"})}})},
       {"words", Json::array({"true", "1", "", "a b", "x: y", "- z", "#c", "null"})},
       {"numbers", Json::array({1, 2.5, -3e-9, true, nullptr})},
       {"nested", Json::array({Json::object({{"k", 1}, {"m", 2}}), Json::array({1, Json::array({2})})})},
       {"empty", Json::array()},
       {"none", Json::object()},
       {"line\nbreak", "two\nlines"}});
  EXPECT_EQ(parse_yaml(to_yaml(value)).value, value) << to_yaml(value);
  EXPECT_EQ(parse_yaml_value("[1, two]"), Json::array({1, "two"}));
  EXPECT_EQ(to_yaml(Json(3)), "3\n");
  EXPECT_EQ(parse_yaml("").value, Json());
}

}  // namespace
}  // namespace trireme::base
