// The readers of single files and directories; open_dataset.h chooses among them. All throw not_found,
// invalid_argument (damaged, naming file and offset), unsupported, exhausted (a gzip file past the limit).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/dataset/dataset.h"
#include "data/dataset/source_file.h"

namespace trireme::data {

/// Header of an IDX file (MNIST family).
struct IdxHeader {
  tensor::DType dtype = tensor::DType::u8;
  tensor::Dims dims;      ///< samples first
  size_t data_bytes = 0;  ///< after the header
  size_t header_bytes = 0;
};
/// Throws invalid_argument unless the bytes are a whole IDX file.
IdxHeader parse_idx(std::string_view file);

/// Images and their labels: "image" u8 [height, width, 1 or c], "label" i64 []. Without `labels_path`: one
/// field, "image" for u8 of rank 3 and 4, else "data" of the file's type.
DatasetPtr open_idx(const std::string& images_path, const std::string& labels_path, int64_t limit_bytes);

/// CIFAR-10's binary form: "image" u8 [32, 32, 3], "label" i64 [].
DatasetPtr open_cifar10(const std::string& path, int64_t limit_bytes);

/// Images in one directory per class, JPEG, PNG or BMP: "image" u8 [?, ?, 3], "label" i64 []. Classes are the
/// directories' names, sorted. A directory with images and no directories has no labels.
DatasetPtr open_image_folder(const std::string& path);

/// Cuts token files into windows of `context` inputs and the tokens that follow them.
struct TokenWindows {
  int64_t context = 0;  ///< T: "input" i64 [T], "target" i64 [T] = the same one token later
  int64_t stride = 0;   ///< from one window's start to the next; 0: T, no overlap
  double hold_out = 0;  ///< share at the end that split "validation" reads and "train" leaves
  std::string split = "train";
};

enum class TokenType : uint8_t { u16, u32 };

/// A flat file of little-endian token ids, mapped, or llm.c's file with its header of 256 words (then the
/// header says the type). With `vocabulary_size` > 0 larger ids are errors when they are read.
DatasetPtr open_tokens(const std::string& path, TokenType type, int64_t vocabulary_size,
                       const TokenWindows& windows, int64_t limit_bytes);

/// A UTF-8 text by character: the vocabulary is its distinct code points in ascending order.
DatasetPtr open_characters(const std::string& path, const TokenWindows& windows, int64_t limit_bytes);

/// A tar shard, plain or gzip. Neighbouring members with one key ("dir/0001.jpg", "dir/0001.cls") are one
/// sample. Fields by extension: jpg, jpeg, png, bmp -> "image"; cls, class -> "label" i64; txt -> "text";
/// "seg.png" and other names keep the extension as their name; what has no decoder is bytes; ".gz" is
/// unpacked. One scan over the headers makes the index; contents are read by offset.
DatasetPtr open_webdataset(const std::string& path, int64_t limit_bytes);

/// tf.Example records (of tf.SequenceExample: the context), plain or gzip. A field per feature: floats f32,
/// integers i64, bytes as strings; one value [] or a list [n] as the first 64 records have it.
DatasetPtr open_tfrecord(const std::string& path, int64_t limit_bytes);

/// A JSON object a line; an index of line starts, made in one pass. A field per member of the first 64 lines:
/// strings text, numbers i64 or f32, arrays of numbers tensors, all else text that holds JSON.
DatasetPtr open_jsonl(const std::string& path, int64_t limit_bytes);

/// Rows of RFC 4180 text. With a header its names are the fields, else "0", "1", …; a column whose values in
/// the first 64 rows are numbers is f32 or i64, others text.
struct CsvOptions {
  bool header = true;
  char delimiter = ',';
};
DatasetPtr open_csv(const std::string& path, const CsvOptions& options, int64_t limit_bytes);

/// A Parquet file through Arrow, its columns (all, or `columns`) decoded into memory once, at most
/// `limit_bytes`. Throws unsupported in builds without Arrow, and for nested columns other than lists.
DatasetPtr open_parquet(const std::string& path, const std::vector<std::string>& columns,
                        int64_t limit_bytes);

}  // namespace trireme::data
