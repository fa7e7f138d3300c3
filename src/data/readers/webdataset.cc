// WebDataset shards: tar archives whose neighbouring members "key.extension" form one sample.
#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "data/readers/field_index.h"
#include "data/readers/readers.h"
#include "data/readers/tar.h"
#include "data/readers/webdataset_member.h"

namespace trireme::data {
namespace {

using base::require;

class WebDataset : public Dataset {
 public:
  WebDataset(SourceFile source, int64_t limit_bytes) : source_(std::move(source)), limit_bytes_(limit_bytes) {
    for (const TarMember& m : list_tar(source_.bytes)) add_member(m);
    starts_.push_back(entries_.size());
    info_.format = "webdataset";
    info_.shards = {{source_.path, size(), source_.file_bytes}};
    FieldIndex index;
    for (const MemberKind& e : extensions_)
      index.add(info_.fields, e.as_field());  // both .jpg and .png are the field "image"
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
      const MemberKind& e = extensions_[entries_[at].extension];
      try {
        sample.values.push_back(decode_member(e, content_of(entries_[at]), limit_bytes_));
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

  std::string_view content_of(const Entry& e) const { return source_.bytes.substr(e.offset, e.size); }

  void add_member(const TarMember& m) {
    const auto [key, text] = split_member_name(m.name);
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

  SourceFile source_;
  int64_t limit_bytes_;
  std::vector<std::string> keys_;  // by sample
  std::vector<size_t> starts_;     // sample i has entries [starts_[i], starts_[i + 1])
  std::vector<Entry> entries_;
  std::vector<MemberKind> extensions_;
  std::map<std::string, uint32_t> known_;
  std::set<std::string> fields_here_;  // fields of the current sample, while the index is built
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
