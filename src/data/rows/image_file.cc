// A folder of images as rows: one file per row, sorted by path.
#include <algorithm>

#include "base/error.h"
#include "base/keyed_hash.h"
#include "data/readers/image_field.h"
#include "data/rows/byte_stream.h"
#include "data/rows/row_formats.h"
#include "data/rows/rows_builder.h"
#include "data/store/object_store.h"

namespace trireme::data {
namespace {

using base::require;
using tensor::DType;
using tensor::Tensor;

constexpr size_t kMostDepth = 64;

struct ImageEntry {
  std::string path;  // the path in the store
  std::string name;  // relative to the folder
  int64_t size = 0;
  int64_t label = -1;
};

class ImageStream : public RowStream {
 public:
  ImageStream(const RowSource& source, const std::vector<ImageEntry>& images, const RowSpan& span,
              ColumnChoice choice)
      : source_(source),
        images_(images),
        at_(span.first_row),
        end_(span.first_row + span.rows),
        choice_(std::move(choice)) {}

  bool next(int64_t most, Rows& out) override {
    RowsBuilder rows(choice_.fields);
    for (; rows.rows() < most && at_ < end_ && rows.bytes() < kPieceBytes; ++at_) {
      const ImageEntry& image = images_[static_cast<size_t>(at_)];
      try {
        add(image, rows);
      } catch (const base::Error& e) {
        if (e.code() == base::ErrorCode::internal || e.code() == base::ErrorCode::unavailable) throw;
        rows.fail_row(e.with(base::concat("row ", at_, ": '", image.name, "'")));
        continue;
      }
      rows.end_row();
    }
    if (rows.rows() == 0) return false;
    out = rows.finish();
    return true;
  }

 private:
  void add(const ImageEntry& image, RowsBuilder& rows) {
    const auto place = [&](size_t field) {
      return field < choice_.place_of.size() ? choice_.place_of[field] : kNoPlace;
    };
    if (place(0) != kNoPlace) {
      const std::shared_ptr<const StoreFile> file = source_.store->open(image.path);
      require(file->size() <= source_.options.most_row_bytes, "image of ", file->size(),
              " bytes is longer than the limit of ", source_.options.most_row_bytes);
      rows.column(place(0)).add(decode_image_tensor(read_range(*file, 0, file->size())));
    }
    if (place(1) != kNoPlace) rows.column(place(1)).add(image.name);
    if (place(2) != kNoPlace) rows.column(place(2)).add_number(image.label);
  }

  const RowSource& source_;
  const std::vector<ImageEntry>& images_;
  int64_t at_, end_;
  ColumnChoice choice_;
};

class ImageFolderFile : public RowFile {
 public:
  explicit ImageFolderFile(RowSource source) : source_(std::move(source)) {
    std::vector<StoreEntry> loose;
    int64_t label = 0;
    for (const StoreEntry& entry : source_.store->list(source_.path)) {
      const std::string name = name_of(entry);
      if (name.starts_with('.')) continue;
      if (!entry.is_directory) {
        if (is_image_name(name)) loose.push_back(entry);
      } else if (add_below(entry.path, name, label, 0)) {
        ++label;
      }
    }
    fields_ = {image_field("image"), {"path", FieldKind::text}};
    if (label > 0) {
      fields_.push_back({"label", FieldKind::tensor, DType::i64, {}, true});
    } else {
      for (const StoreEntry& entry : loose) images_.push_back({entry.path, name_of(entry), entry.size});
    }
    require(!images_.empty(), "no images (.jpg, .jpeg, .png, .bmp) below '", source_.path, "'");
    std::stable_sort(images_.begin(), images_.end(), [](const ImageEntry& a, const ImageEntry& b) {
      return a.label != b.label ? a.label < b.label : a.name < b.name;
    });
  }

  std::string_view format() const override { return "images"; }
  const std::vector<Field>& fields() const override { return fields_; }
  uint64_t content_id() const override {
    constexpr size_t kSamples = 16;
    base::KeyedHash hash({0, 0});
    for (const ImageEntry& image : images_) {
      hash.add(std::string_view(image.name));
      hash.add(static_cast<uint64_t>(image.size));
    }
    const size_t step = std::max<size_t>(1, images_.size() / kSamples);
    for (size_t i = 0; i < images_.size(); i += step)
      hash.add(content_id_of(*source_.store->open(images_[i].path)));
    return hash.finish()[0];
  }
  void cut(int64_t rows, const std::function<void(const RowSpan&)>& take) const override {
    cut_evenly(static_cast<int64_t>(images_.size()), rows, take);
  }
  std::unique_ptr<RowStream> open(const RowSpan& span,
                                  const std::vector<std::string>& columns) const override {
    check_span(span, static_cast<int64_t>(images_.size()));
    return std::make_unique<ImageStream>(source_, images_, span, choose_columns(fields_, columns));
  }

 private:
  std::string name_of(const StoreEntry& entry) const {
    std::string path = source_.store->is_local() ? entry.path : parse_object_url(entry.path).key;
    while (path.ends_with('/')) path.pop_back();
    return path.substr(path.rfind('/') + 1);
  }

  /// Returns false if there are no images below the directory.
  bool add_below(const std::string& directory, const std::string& prefix, int64_t label, size_t depth) {
    require(depth < kMostDepth, "directories lie deeper than ", kMostDepth, ": '", directory, "'");
    bool any = false;
    for (const StoreEntry& entry : source_.store->list(directory)) {
      const std::string name = name_of(entry);
      if (name.starts_with('.')) continue;
      const std::string inner = prefix + "/" + name;
      if (entry.is_directory) {
        any = add_below(entry.path, inner, label, depth + 1) || any;
      } else if (is_image_name(name)) {
        images_.push_back({entry.path, inner, entry.size, label});
        any = true;
      }
    }
    return any;
  }

  RowSource source_;
  std::vector<Field> fields_;
  std::vector<ImageEntry> images_;
};

}  // namespace

std::unique_ptr<RowFile> open_image_rows(RowSource source) {
  return std::make_unique<ImageFolderFile>(std::move(source));
}

}  // namespace trireme::data
