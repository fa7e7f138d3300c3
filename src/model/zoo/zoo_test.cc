// Networks by name: counts of weights known from elsewhere, options, names of errors, seeds.
#include "model/zoo/zoo.h"

#include <gtest/gtest.h>

#include "model/zoo/cnn.h"
#include "model/zoo/gpt2.h"
#include "ops/table.h"

namespace trireme::model::zoo {
namespace {

/// Weights that are never read: untouched memory costs nothing.
class EmptyParams : public ParamSource {
 public:
  tensor::Tensor get(const std::string&, const tensor::Dims& dims, const Init&) override {
    return tensor::Tensor::empty(tensor::DType::f32, dims);
  }
};

int64_t weights(const Model& m) {
  int64_t count = 0;
  for (const ir::Value& v : m.graph.values()) {
    if (v.kind == ir::ValueKind::param) count += v.data.elements();
  }
  return count;
}

std::string error_of(std::string_view name, const std::vector<std::string>& assignments) {
  try {
    build(name, assignments);
  } catch (const base::Error& e) {
    return e.what();
  }
  return "";
}

TEST(Zoo, HasTheKnownParameterCounts) {
  EmptyParams empty;
  EXPECT_EQ(weights(gpt2(Gpt2Config{}, empty)), 124439808);  // the count of Transformers for "gpt2"
  EXPECT_EQ(weights(cnn(CnnConfig{}, empty)), 1199882);      // PyTorch's MNIST example
  // nanoGPT prints 0.80M for its small character model, without positions.
  EXPECT_EQ(weights(gpt2(Gpt2Config::nano(), empty)), 795904 + 64 * 128);
}

TEST(Zoo, EveryNetworkBuildsAndVerifies) {
  for (const Entry& entry : entries()) {
    SCOPED_TRACE(entry.name);
    std::vector<std::string> small;  // the options that make a network small, of those it has
    const base::Json options = options_of(entry.name);
    for (const std::string text : {"layers=1", "vocabulary=11", "positions=8", "width=16", "heads=2",
                                   "size=32", "classes=3", "inner=8"}) {
      if (options.contains(text.substr(0, text.find('=')))) small.push_back(text);
    }
    const Model model = build(entry.name, small);
    ir::verify(model.graph);
    EXPECT_FALSE(model.graph.outputs().empty());
    EXPECT_FALSE(entry.meaning.empty());
  }
}

TEST(Zoo, WeightsDependOnSeedAndNameOnly) {
  const auto first = [](const Model& m, std::string_view name) {
    for (const ir::Value& v : m.graph.values()) {
      if (v.name == name) return v.data;
    }
    return tensor::Tensor();
  };
  const std::vector<std::string> deep{"hidden=[16, 16]"}, deeper{"hidden=[16, 16, 16]"};
  const std::vector<std::string> other{"hidden=[16, 16]", "seed=2"};
  const tensor::Tensor a = first(build("mlp", deep), "fc2.weight");
  ASSERT_TRUE(a.defined());
  EXPECT_TRUE(a.same_as(first(build("mlp", deeper), "fc2.weight")));
  EXPECT_FALSE(a.same_as(first(build("mlp", other), "fc2.weight")));
  double sum = 0, squares = 0;
  for (const float v : a.data<float>()) {
    sum += v;
    squares += double{v} * v;
  }
  EXPECT_NEAR(sum / 256, 0, 0.1);
  EXPECT_NEAR(squares / 256, 2.0 / 16, 0.03);  // He et al. 2015: 2 / fan in
}

TEST(Zoo, NamesTheNearest) {
  EXPECT_NE(error_of("gpt3", {}).find("nearest is 'gpt2'"), std::string::npos);
  EXPECT_NE(error_of("mlp", {"hiden=[3]"}).find("nearest is 'hidden'"), std::string::npos);
  EXPECT_NE(error_of("mlp", {"hidden"}).find("option=value"), std::string::npos);
  EXPECT_NE(error_of("small_resnet", {"depth=9"}).find("6 n + 2"), std::string::npos);
  EXPECT_NE(error_of("gpt2", {"heads=7"}).find("no multiple"), std::string::npos);
}

// A checkpoint states these options: what they cost must not grow with the number.
TEST(Zoo, NoNumberAsksForANetworkWithoutBounds) {
  for (const Entry& entry : entries()) {
    const base::Json options = options_of(entry.name);
    for (const auto& [key, value] : options.as_object()) {
      const bool is_list = value.is_array();
      if (key == "seed" || !(is_list || value.is_integer())) continue;
      const std::string large = base::concat(key, is_list ? "=[2147483648]" : "=2147483648");
      const std::string problem = error_of(entry.name, {large});
      EXPECT_NE(problem.find(base::concat("'", key, "'")), std::string::npos)
          << entry.name << ": " << problem;
      EXPECT_NE(problem.find("must be at most"), std::string::npos) << entry.name << ": " << problem;
    }
  }
}

}  // namespace
}  // namespace trireme::model::zoo
