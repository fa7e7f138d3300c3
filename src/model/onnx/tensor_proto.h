// ONNX tensors as tensors: element type codes, zero-copy raw data, typed fields, external files.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>

#include "model/onnx/proto.h"
#include "tensor/tensor.h"

namespace trireme::base {
class MappedFile;
}

namespace trireme::model::onnx {

/// TensorProto.DataType of strings, which no element type stands for.
inline constexpr int32_t kOnnxString = 8;

/// The most dimensions of a tensor, as in NumPy; shape rules may take quadratic time.
inline constexpr size_t kMaxRank = 64;

/// TensorProto.DataType -> element type. Throws unsupported naming string, complex and unknown types.
tensor::DType dtype_from_onnx(int64_t data_type);
/// Element type -> TensorProto.DataType.
int32_t dtype_to_onnx(tensor::DType dtype);

/// Where the bytes of tensors come from: the model file, and the directory that external data may be in.
/// Tensors of one source share bounds: together they take no more memory than what the files hold allows.
struct TensorSource {
  std::shared_ptr<const void> owner;  ///< keeps the model's bytes alive
  std::string directory;              ///< root of external files; empty: external data is refused
  /// External files by their name in the model; each is mapped once.
  std::map<std::string, std::shared_ptr<const base::MappedFile>, std::less<>> files = {};
  /// External tensors by file, offset, type and count: those that share their bytes are one.
  std::map<std::tuple<std::string, uint64_t, tensor::DType, int64_t>, tensor::Tensor> external = {};
  /// Bytes of each external file that its tensors may still take: they do not overlap.
  std::map<std::string, uint64_t, std::less<>> external_left = {};
  /// Bytes that sparse tensors may still become when dense; their values and indices add to it.
  int64_t dense_left = int64_t{16} << 20;
};

/// Makes the tensor: looks into the file where the bytes are aligned to the element size, else copies.
/// Throws invalid_argument if the data does not fit the type and extents, unsupported for types we do not
/// have.
tensor::Tensor make_tensor(const TensorProto& proto, TensorSource& source);

/// A dense tensor from coordinate lists. Throws as make_tensor.
tensor::Tensor make_dense(const SparseTensorProto& proto, TensorSource& source);

/// Reads a file that holds one TensorProto.
tensor::Tensor read_tensor_file(const std::string& path);

/// The name that the TensorProto of a file has, or "".
std::string read_tensor_name(const std::string& path);

}  // namespace trireme::model::onnx
