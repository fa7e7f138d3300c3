// Tests npy and npz: round trips, other byte and memory orders, broken files.
#include "model/npy.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/files/file.h"

namespace trireme::model {
namespace {

using tensor::DType;
using tensor::Tensor;

class NpyTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = std::filesystem::temp_directory_path() /
           (std::string("trireme_npy_") + ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(dir_);
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }
  std::string file(const std::string& name) const { return (dir_ / name).string(); }
  static Tensor parse(const std::string& header, const std::string& data) {
    std::string bytes = std::string("\x93NUMPY\x01\x00", 8);
    bytes += static_cast<char>(header.size() & 0xff);
    bytes += static_cast<char>(header.size() >> 8);
    auto owner = std::make_shared<std::string>(bytes + header + data);
    return parse_npy(*owner, owner);
  }
  std::filesystem::path dir_;
};

TEST_F(NpyTest, WritesAndReadsEveryType) {
  for (DType dtype : {DType::f32, DType::f64, DType::f16, DType::i8, DType::u8, DType::i16, DType::u16,
                      DType::i32, DType::u32, DType::i64, DType::u64, DType::boolean}) {
    for (const tensor::Dims& dims : std::vector<tensor::Dims>{{}, {0}, {5}, {3, 1, 7}}) {
      Tensor t = Tensor::zeros(dtype, dims);
      for (int64_t i = 0; i < t.bytes(); ++i) t.mutable_raw()[i] = static_cast<std::byte>(i % 2);
      write_npy(file("a.npy"), t);
      EXPECT_TRUE(read_npy(file("a.npy")).same_as(t)) << t.type().to_string();
    }
  }
  EXPECT_THROW(write_npy(file("b.npy"), Tensor::zeros(DType::bf16, {2})), base::Error);
}

TEST_F(NpyTest, ReadsColumnMajorAndBigEndian) {
  // Rows (1, 2, 3) and (4, 5, 6), stored column by column, high byte first.
  const std::string data("\x00\x01\x00\x04\x00\x02\x00\x05\x00\x03\x00\x06", 12);
  const Tensor t = parse("{'descr': '>i2', 'fortran_order': True, 'shape': (2, 3), }", data);
  EXPECT_EQ(t.to_ints(), (std::vector<int64_t>{1, 2, 3, 4, 5, 6}));
}

TEST_F(NpyTest, RefusesBrokenFiles) {
  const std::string good = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }";
  EXPECT_EQ(parse(good, std::string(8, '\0')).dims(), tensor::Dims{2});
  EXPECT_THROW(parse(good, std::string(7, '\0')), base::Error);
  for (const char* bad :
       {"", "{}", "{'descr': '<f4', 'fortran_order': False, 'shape': (2", "{'descr': '<c8'}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (9223372036854775807,9223372036854775807)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}", "{'descr': '<"}) {
    EXPECT_THROW(parse(bad, std::string(64, '\0')), base::Error) << bad;
  }
}

/// A zip file whose directory lists one stored member `times` times; with `wide` its end record leaves count
/// and offset to that of ZIP64.
std::string zip_of(const std::string& npy, int times, bool wide = false) {
  const auto number = [](uint64_t value, int bytes) {
    std::string text;
    for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> 8 * i & 255);
    return text;
  };
  const std::string name = "a.npy", sizes = number(0, 4) + number(npy.size(), 4) + number(npy.size(), 4);
  std::string file =
      "PK\3\4" + number(20, 2) + number(0, 8) + sizes + number(name.size(), 2) + number(0, 2) + name;
  file += npy;
  const size_t directory = file.size();
  for (int i = 0; i < times; ++i) {
    file += "PK\1\2" + number(20, 2) + number(20, 2) + number(0, 8) + sizes + number(name.size(), 2) +
            number(0, 8) + number(0, 4) + number(0, 4) + name;
  }
  const size_t end = file.size();
  const auto count = static_cast<uint64_t>(times);
  if (wide) {
    file += "PK\6\6" + number(44, 8) + number(45, 2) + number(45, 2) + number(0, 8) + number(count, 8) +
            number(count, 8) + number(end - directory, 8) + number(directory, 8);
    file += "PK\6\7" + number(0, 4) + number(end, 8) + number(1, 4);
  }
  return file + "PK\5\6" + number(0, 4) + number(wide ? 0xffff : count, 2) +
         number(wide ? 0xffff : count, 2) + number(wide ? 0xffffffff : end - directory, 4) +
         number(wide ? 0xffffffff : directory, 4) + number(0, 2);
}

TEST_F(NpyTest, ReadsTheEndRecordOfZip64) {
  write_npy(file("a.npy"), Tensor::zeros(DType::u8, {500}));
  const auto wide = std::make_shared<std::string>(zip_of(base::read_file(file("a.npy")), 1, true));
  ASSERT_EQ(parse_npz(*wide, wide).size(), 1u);
  EXPECT_EQ(parse_npz(*wide, wide)[0].first, "a");
  EXPECT_EQ(parse_npz(*wide, wide)[0].second.dims(), tensor::Dims{500});
  const size_t locator = wide->find("PK\6\7");
  for (char& byte : {std::ref((*wide)[locator + 8]), std::ref((*wide)[locator + 15])}) {
    byte = static_cast<char>(byte ^ 0x7f);  // it points elsewhere, or past the end
    EXPECT_THROW(parse_npz(*wide, wide), base::Error);
    byte = static_cast<char>(byte ^ 0x7f);
  }
}

// Members that share bytes would let a small file expand by the number of times it lists them.
TEST_F(NpyTest, MembersOfAZipDoNotOverlap) {
  write_npy(file("a.npy"), Tensor::zeros(DType::u8, {5000}));
  const std::string npy = base::read_file(file("a.npy"));
  const auto once = std::make_shared<std::string>(zip_of(npy, 1)),
             often = std::make_shared<std::string>(zip_of(npy, 3));
  ASSERT_EQ(parse_npz(*once, once).size(), 1u);
  EXPECT_EQ(parse_npz(*once, once)[0].second.dims(), tensor::Dims{5000});
  EXPECT_THROW(parse_npz(*often, often), base::Error);
}

TEST_F(NpyTest, RefusesAFileThatIsNoZip) {
  base::write_file_atomic(file("x.npz"), std::string(100, 'P'));
  EXPECT_THROW(read_npz(file("x.npz")), base::Error);
}

}  // namespace
}  // namespace trireme::model
