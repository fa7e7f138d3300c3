// Tests the choice of a model's reader, and the pooling description of sentence models.
#include "model/load/load.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/files/file.h"
#include "model/hf/pooling.h"
#include "tests/test_data.h"

namespace trireme::model {
namespace {

namespace fs = std::filesystem;

class ModelTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* name = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    dir_ = fs::temp_directory_path() / (std::string("trireme_model_") + name);
    fs::create_directories(dir_ / "1_Pooling");
  }
  void TearDown() override { fs::remove_all(dir_); }
  void write(const std::string& name, const std::string& text) {
    base::write_file_atomic((dir_ / name).string(), text);
  }
  base::ErrorCode code_of(const fs::path& path) {
    try {
      load_model(path.string());
    } catch (const base::Error& e) {
      return e.code();
    }
    return base::ErrorCode::internal;
  }
  fs::path dir_;
};

TEST_F(ModelTest, SaysWhatItCannotLoad) {
  EXPECT_EQ(code_of(dir_ / "absent"), base::ErrorCode::not_found);
  EXPECT_EQ(code_of(dir_), base::ErrorCode::not_found);
  write("weights.bin", "x");
  EXPECT_EQ(code_of(dir_ / "weights.bin"), base::ErrorCode::unsupported);
  write("model.onnx", "not a model");
  EXPECT_EQ(code_of(dir_), base::ErrorCode::invalid_argument);
}

TEST_F(ModelTest, LoadsADirectoryWithModelOnnx) {
  fs::copy_file(tests::source_dir() / "tests/fuzz/onnx/raw.onnx", dir_ / "model.onnx");
  const Model m = load_model(dir_.string());
  EXPECT_EQ(m.format, "onnx");
  EXPECT_EQ(m.directory, dir_.string());
  EXPECT_EQ(m.graph.inputs().size(), 1u);
}

TEST_F(ModelTest, ReadsPooling) {
  EXPECT_EQ(hf::read_pooling(dir_.string()).kind, hf::PoolingKind::mean);
  write("modules.json", R"([{"type": "sentence_transformers.models.Transformer", "path": ""},
                            {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"},
                            {"type": "sentence_transformers.models.Normalize", "path": "2_Normalize"}])");
  write("1_Pooling/config.json", R"({"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false})");
  const hf::Pooling pooling = hf::read_pooling(dir_.string());
  EXPECT_EQ(pooling.kind, hf::PoolingKind::first);
  EXPECT_TRUE(pooling.is_normalized);
  write("1_Pooling/config.json", R"({"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": true})");
  EXPECT_THROW(hf::read_pooling(dir_.string()), base::Error);
  write("1_Pooling/config.json", R"({"pooling_mode_lasttoken": true})");
  EXPECT_THROW(hf::read_pooling(dir_.string()), base::Error);
  write("modules.json", R"([{"type": "sentence_transformers.models.Pooling", "path": "../elsewhere"}])");
  EXPECT_THROW(hf::read_pooling(dir_.string()), base::Error);
}

}  // namespace
}  // namespace trireme::model
