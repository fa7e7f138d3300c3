// Samples, fingerprints, and the wrappers that map, cut, select from and join data sets.
#include "data/dataset/dataset.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "data/dataset/permutation.h"
#include "data/dataset/source_file.h"

namespace trireme::data {

using base::fail;
using base::require;
using tensor::Tensor;

std::string_view to_string(FieldKind kind) {
  switch (kind) {
    case FieldKind::tensor: return "tensor";
    case FieldKind::text: return "text";
    case FieldKind::bytes: return "bytes";
  }
  return "?";
}

const Value* Sample::find(std::string_view name) const {
  for (const Value& v : values) {
    if (v.name == name) return &v;
  }
  return nullptr;
}

namespace {

const Value& must_find(const Sample& sample, std::string_view name) {
  const Value* value = sample.find(name);
  if (value != nullptr) return *value;
  std::string there;
  for (const Value& v : sample.values) there += (there.empty() ? "" : ", ") + v.name;
  fail(base::ErrorCode::not_found, "sample has no field '", name, "'; it has ", there);
}

Value& find_or_add(Sample& sample, std::string_view name) {
  for (Value& v : sample.values) {
    if (v.name == name) return v;
  }
  return sample.values.emplace_back(Value{std::string(name)});
}

}  // namespace

const Tensor& Sample::tensor(std::string_view name) const {
  const Value& value = must_find(*this, name);
  require(value.tensor.defined(), "field is not a tensor: '", name, "'");
  return value.tensor;
}

const std::string& Sample::text(std::string_view name) const {
  const Value& value = must_find(*this, name);
  require(value.strings.size() == 1, "field is not one text: '", name, "', strings: ", value.strings.size());
  return value.strings[0];
}

void Sample::set(std::string_view name, Tensor value) {
  Value& slot = find_or_add(*this, name);
  slot.tensor = std::move(value);
  slot.strings.clear();
}

void Sample::set(std::string_view name, std::string text) {
  Value& slot = find_or_add(*this, name);
  slot.tensor = {};
  slot.strings = {std::move(text)};
}

const Field* DatasetInfo::find(std::string_view name) const {
  for (const Field& f : fields) {
    if (f.name == name) return &f;
  }
  return nullptr;
}

std::string Dataset::name_of(int64_t index) const {
  const std::string file = info().shards.empty() ? info().format : base_name(info().shards[0].path);
  return base::concat(file, ": sample ", index);
}

Sample read_checked(const Dataset& dataset, int64_t index) {
  require(index >= 0 && index < dataset.size(), "sample index is outside of the data set: ", index, ", size ",
          dataset.size());
  return dataset.read(index);
}

namespace {

/// 64-bit FNV-1a over texts and numbers. A text follows its length, so adjacent parts cannot run together.
struct Fnv {
  uint64_t hash = 0xcbf29ce484222325;
  void byte(uint8_t b) { hash = (hash ^ b) * 0x100000001b3; }
  void number(uint64_t n) {
    for (int shift = 0; shift < 64; shift += 8) byte(static_cast<uint8_t>(n >> shift));
  }
  void text(std::string_view t) {
    number(t.size());
    for (const char c : t) byte(static_cast<uint8_t>(c));
  }
};

}  // namespace

uint64_t fingerprint(const Dataset& dataset) {
  const DatasetInfo& info = dataset.info();
  Fnv fnv;
  fnv.text(info.format);
  fnv.number(static_cast<uint64_t>(dataset.size()));
  for (const Field& f : info.fields) {
    fnv.text(f.name);
    fnv.number(static_cast<uint64_t>(f.kind));
    fnv.text(tensor::name_of(f.dtype));
    fnv.text(f.shape.to_string());
  }
  for (const ShardInfo& s : info.shards) {
    fnv.text(base_name(s.path));
    fnv.number(static_cast<uint64_t>(s.samples));
    fnv.number(static_cast<uint64_t>(s.bytes));
  }
  for (const std::string& token : info.vocabulary) fnv.text(token);
  for (const std::string& name : info.class_names) fnv.text(name);
  return fnv.hash;
}

namespace {

class Mapped : public Dataset {
 public:
  Mapped(DatasetPtr from, DatasetInfo info, std::function<void(Sample&)> change)
      : from_(std::move(from)), change_(std::move(change)), info_(std::move(info)) {}
  int64_t size() const override { return from_->size(); }
  const DatasetInfo& info() const override { return info_; }
  Sample read(int64_t index) const override {
    Sample sample = from_->read(index);
    if (change_) change_(sample);
    return sample;
  }
  std::string name_of(int64_t index) const override { return from_->name_of(index); }

 private:
  DatasetPtr from_;
  std::function<void(Sample&)> change_;
  DatasetInfo info_;
};

class Taken : public Dataset {
 public:
  Taken(DatasetPtr from, int64_t begin, int64_t end) : from_(std::move(from)), begin_(begin), end_(end) {}
  int64_t size() const override { return end_ - begin_; }
  const DatasetInfo& info() const override { return from_->info(); }
  Sample read(int64_t index) const override { return from_->read(begin_ + index); }
  std::string name_of(int64_t index) const override { return from_->name_of(begin_ + index); }

 private:
  DatasetPtr from_;
  int64_t begin_, end_;
};

class Subset : public Dataset {
 public:
  Subset(DatasetPtr from, std::vector<int64_t> indices)
      : from_(std::move(from)), indices_(std::move(indices)) {}
  int64_t size() const override { return static_cast<int64_t>(indices_.size()); }
  const DatasetInfo& info() const override { return from_->info(); }
  Sample read(int64_t index) const override { return from_->read(at(index)); }
  std::string name_of(int64_t index) const override { return from_->name_of(at(index)); }

 private:
  int64_t at(int64_t index) const { return indices_[static_cast<size_t>(index)]; }
  DatasetPtr from_;
  std::vector<int64_t> indices_;
};

/// Extents and ranks that differ become unknown. Throws if name, kind or type differ.
void merge_fields(std::vector<Field>& into, const std::vector<Field>& other) {
  require(into.size() == other.size(), "files of one data set differ in their fields: ", into.size(), " and ",
          other.size());
  for (size_t i = 0; i < into.size(); ++i) {
    Field& a = into[i];
    const Field& b = other[i];
    require(a.name == b.name && a.kind == b.kind && a.dtype == b.dtype,
            "files of one data set differ in their fields: '", a.name, "' ", to_string(a.kind), " ",
            tensor::name_of(a.dtype), " and '", b.name, "' ", to_string(b.kind), " ",
            tensor::name_of(b.dtype));
    if (!a.shape.has_rank()) continue;
    if (!b.shape.has_rank() || a.shape.rank() != b.shape.rank()) {
      a.shape = tensor::Shape::unknown_rank();
      continue;
    }
    for (size_t d = 0; d < a.shape.rank(); ++d) {
      if (!(a.shape[d] == b.shape[d])) a.shape[d] = tensor::Dim::unknown();
    }
  }
}

class Joined : public Dataset {
 public:
  explicit Joined(std::vector<DatasetPtr> parts) : parts_(std::move(parts)), info_(parts_[0]->info()) {
    int64_t end = 0;
    for (size_t i = 0; i < parts_.size(); ++i) {
      const DatasetInfo& part = parts_[i]->info();
      ends_.push_back(end += parts_[i]->size());
      if (i == 0) continue;
      merge_fields(info_.fields, part.fields);
      require(part.class_names == info_.class_names && part.vocabulary == info_.vocabulary,
              "files of one data set differ in their classes or vocabulary: '", part.shards[0].path, "'");
      info_.shards.insert(info_.shards.end(), part.shards.begin(), part.shards.end());
      info_.vocabulary_size = std::max(info_.vocabulary_size, part.vocabulary_size);
    }
  }
  int64_t size() const override { return ends_.back(); }
  const DatasetInfo& info() const override { return info_; }
  Sample read(int64_t index) const override {
    const auto [part, inside] = place(index);
    return parts_[part]->read(inside);
  }
  std::string name_of(int64_t index) const override {
    const auto [part, inside] = place(index);
    return parts_[part]->name_of(inside);
  }

 private:
  /// The part and the index inside it. Empty parts hold no index, so upper_bound skips them.
  std::pair<size_t, int64_t> place(int64_t index) const {
    const auto part =
        static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), index) - ends_.begin());
    return {part, index - (part == 0 ? 0 : ends_[part - 1])};
  }

  std::vector<DatasetPtr> parts_;
  std::vector<int64_t> ends_;  // number of samples in parts 0 to i
  DatasetInfo info_;
};

}  // namespace

DatasetPtr map(DatasetPtr from, std::vector<Field> fields, std::function<void(Sample&)> change) {
  DatasetInfo info = from->info();
  info.fields = std::move(fields);
  return std::make_shared<Mapped>(std::move(from), std::move(info), std::move(change));
}

DatasetPtr with_info(DatasetPtr from, DatasetInfo info) {
  return std::make_shared<Mapped>(std::move(from), std::move(info), nullptr);
}

DatasetPtr take(DatasetPtr from, int64_t begin, int64_t end) {
  require(begin >= 0 && begin <= end && end <= from->size(),
          "samples to take are outside of the data set: ", begin, " to ", end, ", size ", from->size());
  return std::make_shared<Taken>(std::move(from), begin, end);
}

DatasetPtr subset(DatasetPtr from, std::vector<int64_t> indices) {
  for (const int64_t i : indices) {
    require(i >= 0 && i < from->size(), "sample index is outside of the data set: ", i, ", size ",
            from->size());
  }
  return std::make_shared<Subset>(std::move(from), std::move(indices));
}

DatasetPtr concat(std::vector<DatasetPtr> parts) {
  require(!parts.empty(), "a data set needs at least one file");
  if (parts.size() == 1) return std::move(parts[0]);
  return std::make_shared<Joined>(std::move(parts));
}

DatasetPtr hold_out(DatasetPtr from, double fraction, std::string_view split) {
  require(fraction > 0 && fraction < 1, "fraction to hold out is not between 0 and 1: ", fraction);
  const bool held = split == "validation";
  require(held || split == "train", "a data set with a held-out part has the splits train and validation: '",
          split, "'");
  const int64_t size = from->size();
  const int64_t held_size = std::llround(static_cast<double>(size) * fraction);
  const Permutation order(0, 0, size);  // files are often sorted by class, so the tail would not be a sample
  std::vector<int64_t> indices;
  for (int64_t i = held ? 0 : held_size; i < (held ? held_size : size); ++i) indices.push_back(order(i));
  std::sort(indices.begin(), indices.end());
  return subset(std::move(from), std::move(indices));
}

}  // namespace trireme::data
