// The config.pbtxt that is written: the server reads what was chosen, and what the old one said besides.
#include "tune/model_directory.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "base/error.h"
#include "base/files/file.h"
#include "serve/config/run_config.h"

namespace trireme::tune {
namespace {

namespace fs = std::filesystem;

Subject subject() {
  Subject s;
  s.name = "m";
  s.variants.push_back({.name = "f32"});
  s.variants.push_back({.name = "bf16", .precision = passes::Precision::bf16});
  return s;
}

TEST(ConfigText, SaysWhatWasChosen) {
  const Candidate c{
      .variant = 1, .layout = {2, 3}, .max_batch = 12, .window_ns = 2'000'000, .row_buckets = {1, 4, 12}};
  const serve::ModelConfig read = serve::parse_model_config(config_text(subject(), c));
  const serve::RunConfig run = serve::RunConfig::of(read.parameters);
  EXPECT_EQ(read.name, "m");
  EXPECT_EQ(read.max_batch_size, 12);
  EXPECT_TRUE(read.has_dynamic_batching);
  EXPECT_FALSE(read.max_queue_delay_us);  // the window adapts
  EXPECT_EQ(read.instances, 2);
  EXPECT_EQ(run.threads, 3);
  EXPECT_EQ(run.buckets, (std::vector<int64_t>{1, 4, 12}));
  EXPECT_EQ(run.window_ns, 2'000'000);
  EXPECT_EQ(run.precision, passes::Precision::bf16);

  EXPECT_FALSE(run.runs_whole.has_value());

  Candidate kept = c;
  kept.keeps_window = kept.runs_whole = true;
  EXPECT_EQ(
      serve::RunConfig::of(serve::parse_model_config(config_text(subject(), kept)).parameters).runs_whole,
      true);
  EXPECT_EQ(serve::parse_model_config(config_text(subject(), kept)).max_queue_delay_us, 2'000);
  const serve::ModelConfig plain = serve::parse_model_config(config_text(subject(), {.layout = {4, 1}}));
  EXPECT_EQ(plain.max_batch_size, 0);
  EXPECT_FALSE(plain.has_dynamic_batching);
}

TEST(ConfigText, KeepsWhatItDoesNotDecide) {
  Subject s = subject();
  s.config_text = R"(name: "old"
max_batch_size: 64
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4, -1 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] label_filename: "a \"b\".txt" } ]
dynamic_batching { preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 100 priority_levels: 2
                   default_priority_level: 2 }
instance_group [ { count: 7 kind: KIND_CPU } ]
parameters { key: "threads" value { string_value: "9" } }
parameters { key: "own" value { string_value: "kept" } }
response_cache { enable: true }
)";
  const Candidate c{.layout = {2, 1}, .max_batch = 4, .row_buckets = {4}};
  const serve::ModelConfig read = serve::parse_model_config(config_text(s, c));
  EXPECT_EQ(read.instances, 2);
  EXPECT_EQ(read.max_batch_size, 4);
  EXPECT_EQ(read.max_queue_delay_us, 0);
  EXPECT_TRUE(read.preferred_batch_size.empty());
  EXPECT_EQ(read.priority_levels, 2u);
  EXPECT_TRUE(read.caches);
  ASSERT_EQ(read.inputs.size(), 1u);
  EXPECT_EQ(read.inputs[0].dims, (tensor::Dims{4, -1}));
  EXPECT_EQ(read.outputs.at(0).label_filename, "a \"b\".txt");
  EXPECT_EQ(serve::RunConfig::of(read.parameters).threads, 1);
  int own = 0;
  for (const auto& [key, value] : read.parameters) own += key == "own" && value == "kept";
  EXPECT_EQ(own, 1);
}

TEST(ModelDirectory, LinksTheFilesOfTheVariant) {
  std::string root = (fs::temp_directory_path() / "trireme-tune-XXXXXX").string();
  ASSERT_NE(mkdtemp(root.data()), nullptr);
  base::write_file_atomic(root + "/net.onnx", "graph");
  fs::create_directories(root + "/weights");
  base::write_file_atomic(root + "/weights/part.bin", "weights");
  base::write_file_atomic(root + "/9b1d.data", "more weights");
  base::write_file_atomic(root + "/network2.onnx", "another");
  base::write_file_atomic(root + "/network.txt", "notes");
  Subject s = subject();
  s.given = s.variants[0].path = root + "/net.onnx";
  s.variants[0].external = {"weights/part.bin", "9b1d.data"};
  for (int round = 0; round < 2; ++round) {  // again over what is there
    write_model_directory(root + "/repository", s, {.layout = {1, 1}});
    EXPECT_EQ(base::read_file(root + "/repository/m/1/model.onnx"), "graph");
    EXPECT_EQ(base::read_file(root + "/repository/m/1/weights/part.bin"), "weights");
    EXPECT_EQ(base::read_file(root + "/repository/m/1/9b1d.data"), "more weights");
    EXPECT_FALSE(fs::exists(root + "/repository/m/1/network2.onnx"));
    EXPECT_FALSE(fs::exists(root + "/repository/m/1/network.txt"));
    EXPECT_TRUE(fs::exists(root + "/repository/m/config.pbtxt"));
  }
  fs::remove_all(root);
}

TEST(ModelDirectory, KeepsTheFilesOfTheModelThatItReplaces) {
  std::string root = (fs::temp_directory_path() / "trireme-tune-XXXXXX").string();
  ASSERT_NE(mkdtemp(root.data()), nullptr);
  const std::string repository = root + "/repository";
  fs::create_directories(repository + "/m/2");
  fs::create_directories(repository + "/other");
  base::write_file_atomic(repository + "/m/2/model.onnx", "graph");
  base::write_file_atomic(repository + "/m/labels.txt", "labels");
  base::write_file_atomic(repository + "/other/config.pbtxt", "name: \"other\"");
  Subject s = subject();
  s.given = repository + "/m";
  s.variants[0].path = s.given + "/2";
  s.config_text = "name: \"m\"";
  write_model_directory(repository, s, {.layout = {1, 1}});
  EXPECT_EQ(base::read_file(repository + "/m/1/model.onnx"), "graph");
  EXPECT_EQ(base::read_file(repository + "/m/labels.txt"), "labels");
  EXPECT_TRUE(fs::exists(repository + "/m/config.pbtxt"));
  EXPECT_FALSE(fs::exists(repository + "/m/2"));
  EXPECT_EQ(std::distance(fs::directory_iterator(repository), fs::directory_iterator()), 2);  // m and other
  fs::remove_all(root);
}

TEST(ModelDirectory, AModelInWhatIsWrittenIsRefused) {
  std::string root = (fs::temp_directory_path() / "trireme-tune-XXXXXX").string();
  ASSERT_NE(mkdtemp(root.data()), nullptr);
  const std::string out = root + "/out";
  for (const char* inside : {"/repository/m/1", "/trial", "/repository2"})
    fs::create_directories(out + inside);
  fs::create_directory_symlink(out + "/repository/m", root + "/link");
  fs::create_directory_symlink(root, out + "/repository/elsewhere");
  for (const std::string& model :
       {out + "/repository/m", out + "/repository/../repository/m/1", out + "/trial", root + "/link/1"})
    EXPECT_THROW(require_elsewhere(model, out), base::Error) << model;
  for (const std::string& model : {root, out, out + "/repository2", out + "/repository/elsewhere"})
    EXPECT_NO_THROW(require_elsewhere(model, out)) << model;
  EXPECT_NO_THROW(require_elsewhere(out + "/repository/m", root + "/not-there"));
  fs::remove_all(root);
}

TEST(OutputError, IsOfTheLargestValue) {
  using tensor::Tensor;
  const Tensor exact = Tensor::from<float>({3}, {4, -8, 0});
  EXPECT_EQ(output_error(exact, exact), 0);
  EXPECT_NEAR(output_error(Tensor::from<float>({3}, {4, -8, 0.8f}), exact), 0.1, 1e-6);
  EXPECT_TRUE(std::isinf(output_error(Tensor::from<float>({3}, {4, -8, NAN}), exact)));
  EXPECT_TRUE(std::isinf(output_error(Tensor::from<float>({2}, {4, -8}), exact)));
  EXPECT_TRUE(std::isinf(output_error(exact, Tensor::from<float>({3}, {0, 0, 0}))));
}

TEST(OutputError, InfinitiesAreNoLargestValueAndNoErrorWhereBothHaveThem) {
  using tensor::Tensor;
  const Tensor exact = Tensor::from<float>({4}, {4, -8, INFINITY, NAN});
  EXPECT_EQ(output_error(exact, exact), 0);
  EXPECT_NEAR(output_error(Tensor::from<float>({4}, {4, -4, INFINITY, NAN}), exact), 0.5, 1e-6);
  for (const float other : {0.0f, -INFINITY, NAN})
    EXPECT_TRUE(std::isinf(output_error(Tensor::from<float>({4}, {4, -8, other, NAN}), exact))) << other;
  for (const float other : {0.0f, INFINITY})
    EXPECT_TRUE(std::isinf(output_error(Tensor::from<float>({4}, {4, -8, INFINITY, other}), exact))) << other;
}

}  // namespace
}  // namespace trireme::tune
