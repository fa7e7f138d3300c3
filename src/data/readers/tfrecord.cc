// Reads TFRecord's framing and tf.Example messages, and makes a data set of them.
#include "data/readers/tfrecord.h"

#include <algorithm>
#include <cstring>
#include <protozero/pbf_reader.hpp>

#include "base/error.h"
#include "base/text/base64.h"
#include "base/text/json.h"
#include "base/utf8.h"
#include "data/readers/field_index.h"
#include "data/readers/readers.h"

namespace trireme::data {

using base::require;
using tensor::DType;
using tensor::Tensor;

namespace {

template <class T>
T little(std::string_view file, uint64_t at) {
  T value = 0;
  std::memcpy(&value, file.data() + at, sizeof(T));
  return value;
}

}  // namespace

uint64_t record_size(std::string_view head, uint64_t at) {
  require(base::masked_crc32c(base::crc32c(head.substr(0, 8))) == little<uint32_t>(head, 8),
          "not a TFRecord file, or a damaged one: wrong sum of a length at byte ", at);
  return little<uint64_t>(head, 0);
}

void check_record(std::string_view record, std::string_view tail, uint64_t at) {
  require(base::masked_crc32c(base::crc32c(record)) == little<uint32_t>(tail, 0),
          "TFRecord is damaged: wrong sum of the record at byte ", at);
}

std::vector<RecordSpan> list_tfrecords(std::string_view file) {
  std::vector<RecordSpan> records;
  for (uint64_t at = 0; at < file.size();) {
    const uint64_t left = file.size() - at;
    require(left >= kRecordHead + kRecordTail, "TFRecord file is cut off in a header at byte ", at);
    const uint64_t size = record_size(file.substr(at, kRecordHead), at);
    require(size <= left - kRecordHead - kRecordTail, "TFRecord file is cut off: record of ", size,
            " bytes at byte ", at, ", ", left, " bytes left");
    records.push_back({at + kRecordHead, size});
    at += kRecordHead + size + kRecordTail;
  }
  return records;
}

std::string_view checked_record(std::string_view file, RecordSpan record) {
  const std::string_view bytes = file.substr(record.offset, record.size);
  check_record(bytes, file.substr(record.offset + record.size, kRecordTail), record.offset);
  return bytes;
}

namespace {

// Fields of tensorflow/core/example: Example.features = SequenceExample.context = 1; Features.feature = 1, a
// map; Feature.bytes_list = 1, float_list = 2, int64_list = 3, each with value = 1.
std::string_view view_of(protozero::data_view v) { return {v.data(), v.size()}; }

/// protozero does not check the wire type: reading a field as another type would read unrelated bytes.
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

bool is_text(const Feature& f) { return std::all_of(f.bytes.begin(), f.bytes.end(), base::is_utf8); }

}  // namespace

void ExampleFields::learn(const std::vector<Feature>& features) {
  for (const Feature& f : features) {
    if (f.size() == 0) continue;
    Field field{f.name};
    if (!f.bytes.empty()) field.kind = is_text(f) ? FieldKind::text : FieldKind::bytes;
    if (!f.ints.empty()) field.dtype = DType::i64;
    const auto [at, is_new] = learned_.try_emplace(f.name, Learned{field, true, f.size()});
    require(learned_.size() <= kMostFields, "records have more than ", kMostFields, " features");
    if (is_new) continue;
    Learned& known = at->second;
    if (field.kind == FieldKind::bytes) known.field.kind = FieldKind::bytes;
    known.fixed = known.fixed && known.count == f.size();
  }
}

std::vector<Field> ExampleFields::fields() const {
  std::vector<Field> fields;
  for (const auto& [name, l] : learned_) {
    Field field = l.field;
    if (field.kind == FieldKind::tensor) {
      if (!l.fixed) field.shape = {tensor::Dim::unknown()};
      if (l.fixed && l.count > 1) field.shape = {static_cast<int64_t>(l.count)};
    }
    fields.push_back(std::move(field));
  }
  return fields;
}

std::vector<Field> ExampleFields::row_fields() const {
  std::vector<Field> all = fields();
  for (Field& field : all) {
    const Learned& l = learned_.at(field.name);
    if (field.kind == FieldKind::tensor || (l.fixed && l.count == 1)) continue;
    field.kind = FieldKind::text;
    field.is_json = true;
  }
  return all;
}

std::string feature_json(const Feature& feature) {
  std::string json = "[";
  for (const std::string_view text : feature.bytes) {
    if (json.size() > 1) json += ',';
    base::append_json(json, base::is_utf8(text) ? text : base::encode_base64(text));
  }
  return json + ']';
}

Tensor feature_tensor(const Feature& f, const tensor::Shape& shape) {
  tensor::Dims dims = {static_cast<int64_t>(f.size())};
  if (shape.rank() == 0 && f.size() == 1) dims.clear();
  if (!f.floats.empty()) return Tensor::from<float>(dims, f.floats);
  return Tensor::from<int64_t>(dims, f.ints);
}

namespace {

constexpr size_t kLearnedRecords = 64;  // read to learn the fields

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
    return {f.name, feature_tensor(f, shape), {}};
  }

  void learn() {
    ExampleFields all;
    for (size_t i = 0; i < std::min(records_.size(), kLearnedRecords); ++i) all.learn(features(i));
    info_.fields = all.fields();
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
