// TFRecord's framing and tf.Example, and the data set made of them.
#include "data/readers/tfrecord.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <protozero/pbf_reader.hpp>

#include "base/error.h"
#include "base/utf8.h"
#include "data/readers/field_index.h"
#include "data/readers/readers.h"

namespace trireme::data {

using base::require;
using tensor::DType;
using tensor::Tensor;

namespace {

// Table k advances the sum of a byte over k further zero bytes: eight bytes a step.
using CrcTables = std::array<std::array<uint32_t, 256>, 8>;
constexpr CrcTables make_crc_tables() {
  CrcTables t{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1) != 0 ? 0x82F63B78u : 0u);
    t[0][byte] = crc;
  }
  for (size_t k = 1; k < 8; ++k) {
    for (size_t byte = 0; byte < 256; ++byte) t[k][byte] = t[k - 1][byte] >> 8 ^ t[0][t[k - 1][byte] & 255];
  }
  return t;
}
constexpr CrcTables kCrc = make_crc_tables();

template <class T>
T little(std::string_view file, uint64_t at) {
  T value = 0;
  std::memcpy(&value, file.data() + at, sizeof(T));
  return value;
}

constexpr uint64_t kHead = 12;  // u64 length, u32 sum of the length
constexpr uint64_t kTail = 4;   // u32 sum of the content

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  uint32_t crc = ~0u;
  size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    const uint64_t word = little<uint64_t>(bytes, i) ^ crc;
    crc = 0;
    for (size_t k = 0; k < 8; ++k) crc ^= kCrc[7 - k][word >> (8 * k) & 255];
  }
  for (; i < bytes.size(); ++i) crc = crc >> 8 ^ kCrc[0][(crc ^ static_cast<uint8_t>(bytes[i])) & 255];
  return ~crc;
}

std::vector<RecordSpan> list_tfrecords(std::string_view file) {
  std::vector<RecordSpan> records;
  for (uint64_t at = 0; at < file.size();) {
    const uint64_t left = file.size() - at;
    require(left >= kHead + kTail, "TFRecord file is cut off in a header at byte ", at);
    require(masked(crc32c(file.substr(at, 8))) == little<uint32_t>(file, at + 8),
            "not a TFRecord file, or a damaged one: wrong sum of a length at byte ", at);
    const auto size = little<uint64_t>(file, at);
    require(size <= left - kHead - kTail, "TFRecord file is cut off: record of ", size, " bytes at byte ", at,
            ", ", left, " bytes left");
    records.push_back({at + kHead, size});
    at += kHead + size + kTail;
  }
  return records;
}

std::string_view checked_record(std::string_view file, RecordSpan record) {
  const std::string_view bytes = file.substr(record.offset, record.size);
  require(masked(crc32c(bytes)) == little<uint32_t>(file, record.offset + record.size),
          "TFRecord is damaged: wrong sum of the record at byte ", record.offset);
  return bytes;
}

namespace {

// Fields of tensorflow/core/example: Example.features = SequenceExample.context = 1; Features.feature = 1, a
// map; Feature.bytes_list = 1, float_list = 2, int64_list = 3, each with value = 1.
std::string_view view_of(protozero::data_view v) { return {v.data(), v.size()}; }

/// protozero takes the wire type on trust: asking it for another one reads what is not there.
void expect_type(const protozero::pbf_reader& field, protozero::pbf_wire_type type) {
  require(field.wire_type() == type, "record is not a tf.Example: field ", field.tag(), " has wire type ",
          static_cast<uint32_t>(field.wire_type()));
}
constexpr auto kBytes = protozero::pbf_wire_type::length_delimited;

protozero::pbf_reader message_of(protozero::pbf_reader& field) {
  expect_type(field, kBytes);
  return field.get_message();
}
std::string_view bytes_of(protozero::pbf_reader& field) {
  expect_type(field, kBytes);
  return view_of(field.get_view());
}

void read_floats(protozero::pbf_reader& list, Feature& feature) {
  if (list.wire_type() != kBytes) {
    expect_type(list, protozero::pbf_wire_type::fixed32);
    feature.floats.push_back(list.get_float());
    return;
  }
  const std::string_view packed = bytes_of(list);
  require(packed.size() % 4 == 0, "record is not a tf.Example: packed floats take ", packed.size(), " bytes");
  const size_t before = feature.floats.size();
  feature.floats.resize(before + packed.size() / 4);
  if (!packed.empty()) std::memcpy(feature.floats.data() + before, packed.data(), packed.size());
}

void read_ints(protozero::pbf_reader& list, Feature& feature) {
  if (list.wire_type() != kBytes) {
    expect_type(list, protozero::pbf_wire_type::varint);
    feature.ints.push_back(list.get_int64());
    return;
  }
  for (const int64_t value : list.get_packed_int64()) feature.ints.push_back(value);
}

void read_feature(protozero::pbf_reader message, Feature& feature) {
  while (message.next()) {
    const auto kind = message.tag();
    if (kind < 1 || kind > 3) {
      message.skip();
      continue;
    }
    protozero::pbf_reader list = message_of(message);
    while (list.next(1)) {
      if (kind == 1) feature.bytes.push_back(bytes_of(list));
      if (kind == 2) read_floats(list, feature);
      if (kind == 3) read_ints(list, feature);
    }
  }
}

Feature read_map_entry(protozero::pbf_reader entry) {
  Feature feature;
  while (entry.next()) {
    if (entry.tag() == 1) {
      feature.name = bytes_of(entry);
    } else if (entry.tag() == 2) {
      read_feature(message_of(entry), feature);
    } else {
      entry.skip();
    }
  }
  return feature;
}

}  // namespace

std::vector<Feature> parse_example(std::string_view record) {
  std::vector<Feature> features;
  try {
    protozero::pbf_reader example(record.data(), record.size());
    while (example.next(1)) {
      protozero::pbf_reader map = message_of(example);
      while (map.next(1)) features.push_back(read_map_entry(message_of(map)));
    }
  } catch (const protozero::exception& e) {
    base::fail_invalid("record is not a tf.Example: ", e.what());
  }
  std::sort(features.begin(), features.end(),
            [](const Feature& a, const Feature& b) { return a.name < b.name; });
  return features;
}

namespace {

// Records that are read to learn the fields: map entries may be missing, and lists differ in length.
constexpr size_t kLearnedRecords = 64;

/// What the first records say of one feature.
struct Learned {
  Field field;
  bool fixed = true;  // every list had `count` values
  size_t count = 0;
};

class TfRecordDataset : public Dataset {
 public:
  explicit TfRecordDataset(SourceFile source)
      : source_(std::move(source)), records_(list_tfrecords(source_.bytes)) {
    info_.format = "tfrecord";
    info_.shards = {{source_.path, size(), source_.file_bytes}};
    learn();
  }

  int64_t size() const override { return static_cast<int64_t>(records_.size()); }
  const DatasetInfo& info() const override { return info_; }
  Sample read(int64_t index) const override {
    Sample sample;
    for (const Feature& feature : features(static_cast<size_t>(index))) {
      const Field* field = index_.find(info_.fields, feature.name);
      if (feature.size() == 0 || field == nullptr) continue;  // an absent value: the sample lacks the field
      sample.values.push_back(value_of(feature, field->shape));
    }
    return sample;
  }

 private:
  std::vector<Feature> features(size_t index) const {
    return parse_example(checked_record(source_.bytes, records_[index]));
  }

  static Value value_of(const Feature& f, const tensor::Shape& shape) {
    if (!f.bytes.empty()) return {f.name, {}, {f.bytes.begin(), f.bytes.end()}};
    tensor::Dims dims = {static_cast<int64_t>(f.size())};
    if (shape.rank() == 0 && f.size() == 1) dims.clear();
    if (!f.floats.empty()) return {f.name, Tensor::from<float>(dims, f.floats), {}};
    return {f.name, Tensor::from<int64_t>(dims, f.ints), {}};
  }

  static bool is_text(const Feature& f) { return std::all_of(f.bytes.begin(), f.bytes.end(), base::is_utf8); }

  static void learn_feature(const Feature& f, std::map<std::string, Learned>& all) {
    if (f.size() == 0) return;
    Field field{f.name};
    if (!f.bytes.empty()) field.kind = is_text(f) ? FieldKind::text : FieldKind::bytes;
    if (!f.ints.empty()) field.dtype = DType::i64;
    const auto [at, is_new] = all.try_emplace(f.name, Learned{field, true, f.size()});
    if (is_new) return;
    Learned& known = at->second;
    if (field.kind == FieldKind::bytes) known.field.kind = FieldKind::bytes;
    known.fixed = known.fixed && known.count == f.size();
  }

  void learn() {
    std::map<std::string, Learned> all;  // in the order of the names
    for (size_t i = 0; i < std::min(records_.size(), kLearnedRecords); ++i) {
      for (const Feature& f : features(i)) learn_feature(f, all);
    }
    for (auto& [name, l] : all) {
      if (l.field.kind == FieldKind::tensor) {
        if (!l.fixed) l.field.shape = {tensor::Dim::unknown()};
        if (l.fixed && l.count > 1) l.field.shape = {static_cast<int64_t>(l.count)};
      }
      info_.fields.push_back(std::move(l.field));
    }
    index_.assign(info_.fields);
  }

  SourceFile source_;
  std::vector<RecordSpan> records_;
  DatasetInfo info_;
  FieldIndex index_;
};

}  // namespace

DatasetPtr open_tfrecord(const std::string& path, int64_t limit_bytes) {
  SourceFile source = open_source(path, limit_bytes);
  try {
    return std::make_shared<TfRecordDataset>(std::move(source));
  } catch (const base::Error& e) {
    throw e.with("'" + path + "'");
  }
}

}  // namespace trireme::data
