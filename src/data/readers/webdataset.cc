// WebDataset shards: tar archives whose neighbouring members "key.extension" form one sample.
#include <algorithm>
#include <charconv>
#include <limits>
#include <map>
#include <set>

#include "base/error.h"
#include "data/readers/field_index.h"
#include "data/readers/image_field.h"
#include "data/readers/readers.h"
#include "data/readers/tar.h"

namespace trireme::data {
namespace {

using base::require;
using tensor::DType;
using tensor::Tensor;

enum class Decoding : uint8_t { image, integer, text, bytes };

/// How the content of an extension becomes a field.
struct Extension {
  std::string name;   // lower case, ".gz" taken off: "jpg", "seg.png"
  std::string field;  // "image", "label", "text", or the extension
  Decoding decoding = Decoding::bytes;
  bool is_gzip = false;
};

bool is_one_of(std::string_view word, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

Extension parse_extension(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  Extension e;
  e.is_gzip = text.ends_with(".gz");
  e.name = std::string(without_gz(text));
  const std::string last = e.name.substr(e.name.rfind('.') + 1);  // "seg.png" is decoded as png
  const bool whole = last == e.name;
  e.field = e.name;
  if (is_one_of(last, {"jpg", "jpeg", "png", "bmp"})) {
    e.decoding = Decoding::image;
    if (whole) e.field = "image";
  } else if (is_one_of(last, {"cls", "cls2", "class", "count", "index", "inx", "id"})) {
    e.decoding = Decoding::integer;
    if (e.name == "cls" || e.name == "class") e.field = "label";
  } else if (is_one_of(last, {"txt", "text", "transcript", "json", "jsn"})) {
    e.decoding = Decoding::text;
    if (e.name == "txt") e.field = "text";
  }
  return e;
}

/// "dir/0001.seg.png" -> "dir/0001" and "seg.png": the key ends at the first dot of the base name. Empty
/// extension: the member belongs to no sample (as in the webdataset library).
std::pair<std::string_view, std::string_view> split_name(std::string_view name) {
  const size_t slash = name.rfind('/');
  const size_t start = slash == std::string_view::npos ? 0 : slash + 1;
  const size_t dot = name.find('.', start);
  if (dot == std::string_view::npos || dot == start || name.substr(start).starts_with("__")) return {};
  return {name.substr(0, dot), name.substr(dot + 1)};
}

class WebDataset : public Dataset {
 public:
  WebDataset(SourceFile source, int64_t limit_bytes) : source_(std::move(source)), limit_bytes_(limit_bytes) {
    for (const TarMember& m : list_tar(source_.bytes)) add_member(m);
    starts_.push_back(entries_.size());
    info_.format = "webdataset";
    info_.shards = {{source_.path, size(), source_.file_bytes}};
    FieldIndex index;
    for (const Extension& e : extensions_) add_field(index, e);
    std::sort(info_.fields.begin(), info_.fields.end(),
              [](const Field& a, const Field& b) { return a.name < b.name; });
  }

  int64_t size() const override { return static_cast<int64_t>(keys_.size()); }
  const DatasetInfo& info() const override { return info_; }
  std::string name_of(int64_t index) const override {
    return base_name(source_.path) + ": " + keys_[static_cast<size_t>(index)];
  }
  Sample read(int64_t index) const override {
    const auto i = static_cast<size_t>(index);
    Sample sample;
    for (size_t at = starts_[i]; at < starts_[i + 1]; ++at) {
      const Extension& e = extensions_[entries_[at].extension];
      try {
        sample.values.push_back(decode(e, source_.bytes.substr(entries_[at].offset, entries_[at].size)));
      } catch (const base::Error& error) {
        throw error.with("member ." + e.name);
      }
    }
    return sample;
  }

 private:
  struct Entry {
    uint64_t offset, size;
    uint32_t extension;
  };

  void add_member(const TarMember& m) {
    const auto [key, text] = split_name(m.name);
    if (text.empty()) return;
    if (keys_.empty() || keys_.back() != key) {
      starts_.push_back(entries_.size());
      keys_.emplace_back(key);
      fields_here_.clear();
    }
    const uint32_t extension = intern(std::string(text));
    require(fields_here_.insert(extensions_[extension].field).second,
            "two members of one sample are the same field: '", m.name, "'");
    entries_.push_back({m.offset, m.size, extension});
  }

  uint32_t intern(const std::string& text) {
    const auto [at, is_new] = known_.emplace(text, static_cast<uint32_t>(extensions_.size()));
    if (is_new) extensions_.push_back(parse_extension(text));
    return at->second;
  }

  void add_field(FieldIndex& index, const Extension& e) {
    Field field{e.field};
    if (e.decoding == Decoding::image) field = image_field(e.field);
    if (e.decoding == Decoding::integer) field.dtype = DType::i64;
    if (e.decoding == Decoding::text) field.kind = FieldKind::text;
    if (e.decoding == Decoding::bytes) field.kind = FieldKind::bytes;
    field.is_target = e.field == "label";
    index.add(info_.fields, field);  // .jpg and .png are both the image
  }

  Value decode(const Extension& e, std::string_view content) const {
    std::string unpacked;
    if (e.is_gzip) content = unpacked = gunzip(content, limit_bytes_);
    switch (e.decoding) {
      case Decoding::image: return {e.field, decode_image_tensor(content), {}};
      case Decoding::integer: return {e.field, Tensor::scalar(parse_integer(content)), {}};
      default: return {e.field, {}, {std::string(content)}};
    }
  }

  static int64_t parse_integer(std::string_view text) {
    while (!text.empty() && (text.back() == '\n' || text.back() == '\r' || text.back() == ' ')) {
      text.remove_suffix(1);
    }
    int64_t value = 0;
    const auto [at, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    require(error == std::errc() && at == text.data() + text.size(), "not an integer: '", text.substr(0, 40),
            "'");
    return value;
  }

  SourceFile source_;
  int64_t limit_bytes_;
  std::vector<std::string> keys_;  // of sample i
  std::vector<size_t> starts_;     // sample i has entries [starts_[i], starts_[i + 1])
  std::vector<Entry> entries_;
  std::vector<Extension> extensions_;
  std::map<std::string, uint32_t> known_;
  std::set<std::string> fields_here_;  // of the sample whose members come, while the index is made
  DatasetInfo info_;
};

}  // namespace

DatasetPtr open_webdataset(const std::string& path, int64_t limit_bytes) {
  SourceFile source = open_source(path, limit_bytes);
  try {
    return std::make_shared<WebDataset>(std::move(source), limit_bytes);
  } catch (const base::Error& e) {
    throw e.with("'" + path + "'");
  }
}

}  // namespace trireme::data
