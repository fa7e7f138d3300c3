// TFRecord files: framed records with masked CRC-32C sums, and the tf.Example messages inside them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/dataset/dataset.h"

namespace trireme::data {

/// CRC-32C (Castagnoli), as iSCSI and TFRecord compute it.
uint32_t crc32c(std::string_view bytes);

/// TFRecord's rotation, which keeps a sum of sums from being trivial.
constexpr uint32_t masked(uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xa282ead8u; }

/// Where a record's bytes lie in the file.
struct RecordSpan {
  uint64_t offset = 0;
  uint64_t size = 0;
};

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

}  // namespace trireme::data
