// Reads a checkpoint box by box: whatever layout wrote it, each rank takes what it holds.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/files/file.h"
#include "base/text/json.h"
#include "tensor/shard.h"
#include "tensor/tensor.h"

namespace trireme::train {

/// One logical tensor of a checkpoint.
struct StoredTensor {
  struct Chunk {
    tensor::Box box;
    std::string file;
    int64_t byte_offset = 0, bytes = 0;
    uint32_t crc32c = 0;
  };
  std::string name;
  tensor::DType dtype = tensor::DType::f32;
  tensor::Dims dims;
  std::vector<Chunk> chunks;  ///< tile the whole exactly once
};

/// A checkpoint directory. Opening it reads the index and checks it: its checksum, that chunks tile their
/// tensors, that element types fill whole bytes, that the files are as long as they have to be and lie in the
/// directory. Bytes are read when they are asked for.
class CheckpointReader {
 public:
  /// Throws not_found, or invalid_argument naming what is wrong.
  explicit CheckpointReader(const std::string& directory);

  const std::string& directory() const { return directory_; }
  int64_t step() const { return step_; }
  const base::Json& meta() const { return meta_; }
  /// In the order of their names.
  const std::vector<StoredTensor>& tensors() const { return tensors_; }
  /// Null if there is none of that name.
  const StoredTensor* find(const std::string& name) const;

  /// Checks the checksums of the chunks part, part + parts, …: ranks that each check a part have checked all.
  /// Throws invalid_argument naming the file.
  void verify(int part, int parts) const;
  /// The same for all chunks of one tensor.
  void verify(const StoredTensor& stored) const;
  /// Fills `local` with boxes of a tensor, which lie in it side by side (tensor::local_boxes). Touches only
  /// the bytes of these boxes; does not check checksums.
  void read(const StoredTensor& stored, const std::vector<tensor::Box>& boxes, tensor::Tensor& local) const;
  /// The whole tensor.
  tensor::Tensor read(const StoredTensor& stored) const;

 private:
  void add_tensor(const base::Json& entry);
  const std::byte* bytes_of(const StoredTensor::Chunk& chunk) const;
  void verify(const StoredTensor& stored, const StoredTensor::Chunk& chunk) const;

  std::string directory_;
  int64_t step_ = 0;
  base::Json meta_;
  std::vector<StoredTensor> tensors_;
  std::map<std::string, std::shared_ptr<const base::MappedFile>> files_;
  std::map<std::string, int64_t> taken_bytes_;  ///< of each file, by chunks: no two share bytes
};

}  // namespace trireme::train
