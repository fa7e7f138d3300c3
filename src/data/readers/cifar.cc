// CIFAR-10's binary files: records of one label byte and 3072 bytes, red, green, then blue plane.
#include "base/error.h"
#include "data/readers/readers.h"

namespace trireme::data {
namespace {

using base::require;
using tensor::DType;
using tensor::Tensor;

constexpr int64_t kSide = 32;
constexpr size_t kPlane = kSide * kSide;
constexpr size_t kRecord = 1 + 3 * kPlane;
constexpr uint8_t kClasses = 10;

class Cifar10 : public Dataset {
 public:
  explicit Cifar10(SourceFile source) : source_(std::move(source)) {
    require(source_.bytes.size() % kRecord == 0, "CIFAR-10 file is not a whole number of records of ",
            kRecord, " bytes: '", source_.path, "', bytes: ", source_.bytes.size());
    info_.format = "cifar10";
    info_.fields = {{"image", FieldKind::tensor, DType::u8, {kSide, kSide, 3}, false},
                    {"label", FieldKind::tensor, DType::i64, {}, true}};
    info_.shards = {{source_.path, size(), source_.file_bytes}};
    info_.class_names = {"airplane", "automobile", "bird",  "cat",  "deer",
                         "dog",      "frog",       "horse", "ship", "truck"};
  }

  int64_t size() const override { return static_cast<int64_t>(source_.bytes.size() / kRecord); }
  const DatasetInfo& info() const override { return info_; }
  Sample read(int64_t index) const override {
    const std::string_view record = source_.bytes.substr(static_cast<size_t>(index) * kRecord, kRecord);
    const auto label = static_cast<uint8_t>(record[0]);
    require(label < kClasses, "CIFAR-10 label is not below 10: ", int{label});
    Tensor image = Tensor::empty(DType::u8, {kSide, kSide, 3});
    uint8_t* out = image.mutable_data<uint8_t>().data();
    for (size_t i = 0; i < kPlane; ++i) {
      for (size_t c = 0; c < 3; ++c) out[3 * i + c] = static_cast<uint8_t>(record[1 + c * kPlane + i]);
    }
    Sample sample;
    sample.values.push_back({"image", std::move(image), {}});
    sample.values.push_back({"label", Tensor::scalar(int64_t{label}), {}});
    return sample;
  }

 private:
  SourceFile source_;
  DatasetInfo info_;
};

}  // namespace

DatasetPtr open_cifar10(const std::string& path, int64_t limit_bytes) {
  return std::make_shared<Cifar10>(open_source(path, limit_bytes));
}

}  // namespace trireme::data
