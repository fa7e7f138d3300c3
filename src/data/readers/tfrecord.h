// TFRecord files: framed records with masked CRC-32C sums, and the tf.Example messages inside them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/crc32c.h"
#include "data/dataset/dataset.h"

namespace trireme::data {

/// Where a record's bytes lie in the file.
struct RecordSpan {
  uint64_t offset = 0;
  uint64_t size = 0;
};

inline constexpr uint64_t kRecordHead = 12;  ///< u64 length, u32 sum of the length
inline constexpr uint64_t kRecordTail = 4;   ///< u32 sum of the content

/// The size of the record whose head, kRecordHead bytes, stands at byte `at` of the file. Throws
/// invalid_argument if the length's sum is wrong.
uint64_t record_size(std::string_view head, uint64_t at);

/// Throws invalid_argument unless `record` has the sum `tail`, kRecordTail bytes.
void check_record(std::string_view record, std::string_view tail, uint64_t at);

/// Lists the records; checks each length's sum, not the contents'. Throws invalid_argument with the offset
/// for damage and for a cut-off file.
std::vector<RecordSpan> list_tfrecords(std::string_view file);

/// The record's bytes. Throws invalid_argument if their sum is wrong.
std::string_view checked_record(std::string_view file, RecordSpan record);

/// One feature: at most one of the lists is filled.
struct Feature {
  std::string name;
  std::vector<std::string_view> bytes;
  std::vector<float> floats;
  std::vector<int64_t> ints;

  size_t size() const { return bytes.size() + floats.size() + ints.size(); }
};

/// Features of a tf.Example, or the context features of a tf.SequenceExample, by name; the views look into
/// `record`. Throws invalid_argument for bytes that are no such message.
std::vector<Feature> parse_example(std::string_view record);

/// Fields of features, learned from records: map entries may be missing, and lists differ in length.
class ExampleFields {
 public:
  void learn(const std::vector<Feature>& features);
  /// In the order of their names.
  std::vector<Field> fields() const;
  /// The same with one value a row: of texts and bytes that are lists, the JSON of the list (feature_json).
  std::vector<Field> row_fields() const;

 private:
  struct Learned {
    Field field;
    bool fixed = true;  // every list had `count` values
    size_t count = 0;
  };
  std::map<std::string, Learned> learned_;
};

/// The numbers of a feature in its field's shape: one value [] or a list [n]. f32 or i64.
tensor::Tensor feature_tensor(const Feature& feature, const tensor::Shape& shape);

/// The texts of a feature as a JSON list; those that are not UTF-8 in base64.
std::string feature_json(const Feature& feature);

}  // namespace trireme::data
