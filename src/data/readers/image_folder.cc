// Image folders: one directory per class, decoded as they are read.
#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/files/file.h"
#include "data/image/image.h"
#include "data/readers/image_field.h"
#include "data/readers/readers.h"

namespace trireme::data {
namespace {

namespace fs = std::filesystem;
using tensor::DType;
using tensor::Tensor;

struct ImageFile {
  std::string path;
  int64_t label = -1;
};

class ImageFolder : public Dataset {
 public:
  explicit ImageFolder(const std::string& path) : root_(path) {
    for (const std::string& name : list_directory(path)) {
      if (name.starts_with('.') || !is_directory(path + "/" + name)) continue;
      const auto label = static_cast<int64_t>(info_.class_names.size());
      if (add_images(path + "/" + name, label) > 0) info_.class_names.push_back(name);
    }
    info_.format = "images";
    info_.fields.push_back(image_field("image"));
    if (files_.empty()) {
      add_images(path, -1);
    } else {
      info_.fields.push_back({"label", FieldKind::tensor, DType::i64, {}, true});
    }
    base::require(!files_.empty(), "no images (.jpg, .jpeg, .png, .bmp) below '", path, "'");
  }

  int64_t size() const override { return static_cast<int64_t>(files_.size()); }
  const DatasetInfo& info() const override { return info_; }
  Sample read(int64_t index) const override {
    const ImageFile& file = files_[static_cast<size_t>(index)];
    Sample sample;
    sample.values.push_back({"image", decode_image_tensor(base::read_file(file.path)), {}});
    if (file.label >= 0) sample.values.push_back({"label", Tensor::scalar(file.label), {}});
    return sample;
  }
  std::string name_of(int64_t index) const override {
    return fs::path(files_[static_cast<size_t>(index)].path).lexically_relative(root_).string();
  }

 private:
  /// Adds the images below a directory in the order of their paths; returns how many there were.
  size_t add_images(const std::string& directory, int64_t label) {
    const size_t before = files_.size();
    ShardInfo shard{directory};
    std::error_code error;
    for (fs::recursive_directory_iterator it(directory, error), end; !error && it != end;
         it.increment(error)) {
      const std::string file = it->path().string();
      if (!is_image_name(file) || it->path().filename().string().starts_with('.')) continue;
      files_.push_back({file, label});
      shard.bytes += static_cast<int64_t>(it->file_size(error));
    }
    if (error) base::fail(base::ErrorCode::not_found, "cannot list '", directory, "': ", error.message());
    std::sort(files_.begin() + static_cast<ptrdiff_t>(before), files_.end(),
              [](const ImageFile& a, const ImageFile& b) { return a.path < b.path; });
    shard.samples = static_cast<int64_t>(files_.size() - before);
    if (shard.samples > 0) info_.shards.push_back(std::move(shard));
    return files_.size() - before;
  }

  std::string root_;
  std::vector<ImageFile> files_;
  DatasetInfo info_;
};

}  // namespace

DatasetPtr open_image_folder(const std::string& path) { return std::make_shared<ImageFolder>(path); }

}  // namespace trireme::data
