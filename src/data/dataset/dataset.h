// Data sets by random access: what a sample holds, the interface of every reader, and wrappers that compose.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tensor/tensor.h"

namespace trireme::data {

enum class FieldKind : uint8_t { tensor, text, bytes };
std::string_view to_string(FieldKind kind);

/// One column of a data set.
struct Field {
  std::string name;
  FieldKind kind = FieldKind::tensor;
  tensor::DType dtype = tensor::DType::f32;  ///< of tensors
  tensor::Shape shape = {};                  ///< of one sample; unknown where samples differ
  bool is_target = false;                    ///< what a model is to predict, for example "label"
  bool is_json = false;                      ///< of text: every value is JSON, as of lists of texts
  bool operator==(const Field&) const = default;
};

/// One field of one sample: a tensor, or texts or bytes (one string, save where a format allows several).
struct Value {
  std::string name;
  tensor::Tensor tensor = {};
  std::vector<std::string> strings = {};
};

/// What one index holds. Images are "image" u8 [height, width, channels], classes "label" i64 [].
struct Sample {
  std::vector<Value> values;

  const Value* find(std::string_view name) const;
  /// Throw not_found for a missing field, invalid_argument for one of the other kind.
  const tensor::Tensor& tensor(std::string_view name) const;
  const std::string& text(std::string_view name) const;
  /// Adds or replaces a field.
  void set(std::string_view name, tensor::Tensor value);
  void set(std::string_view name, std::string text);
};

/// One file of a data set.
struct ShardInfo {
  std::string path;
  int64_t samples = 0;
  int64_t bytes = 0;  ///< on disk
};

/// What is known without reading samples.
struct DatasetInfo {
  std::string format;  ///< "idx", "cifar10", …
  std::vector<Field> fields;
  std::vector<ShardInfo> shards;
  std::vector<std::string> class_names;  ///< by label; empty if not known
  std::vector<std::string> vocabulary;   ///< by token id; empty if not known
  int64_t vocabulary_size = 0;           ///< of token data; 0 if not known

  const Field* find(std::string_view name) const;
};

/// Samples by index. Reading is const and safe from several threads at once; whoever shuffles, splits or
/// batches does so by indices alone.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual int64_t size() const = 0;
  virtual const DatasetInfo& info() const = 0;
  /// Decodes sample `index` in [0, size()). Tensors may share the reader's memory: never write to them.
  /// Throws invalid_argument for damaged content.
  virtual Sample read(int64_t index) const = 0;
  /// Where sample `index` comes from, for messages: "train.tar: 000123".
  virtual std::string name_of(int64_t index) const;
};
using DatasetPtr = std::shared_ptr<const Dataset>;

/// 64-bit hash of format, fields, file names (without directories), file sizes and sample counts: says
/// whether a checkpoint's position still means the same samples. Does not read the samples.
uint64_t fingerprint(const Dataset& dataset);

/// Reads and checks the index: the call for whoever got the index from outside.
Sample read_checked(const Dataset& dataset, int64_t index);

/// Applies `change` to every sample as it is read; `fields` describe the result.
DatasetPtr map(DatasetPtr from, std::vector<Field> fields, std::function<void(Sample&)> change);

/// The samples of `from` under another description, for example with names for its classes.
DatasetPtr with_info(DatasetPtr from, DatasetInfo info);

/// Samples [begin, end) of `from`.
DatasetPtr take(DatasetPtr from, int64_t begin, int64_t end);

/// Samples `indices` of `from`, in that order. Throws invalid_argument for an index outside.
DatasetPtr subset(DatasetPtr from, std::vector<int64_t> indices);

/// One after another. The fields must agree: extents that differ become unknown; otherwise invalid_argument.
DatasetPtr concat(std::vector<DatasetPtr> parts);

/// The part that `split` names when `fraction` of the samples is held out: "train" is the rest,
/// "validation" the held-out part. Which samples those are depends on the size and the fraction only.
DatasetPtr hold_out(DatasetPtr from, double fraction, std::string_view split);

}  // namespace trireme::data
