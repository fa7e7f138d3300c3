// A tensor as KServe v2 names it: its wire datatype, and BYTES beside the numeric types of the engine.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/memory/memory_budget.h"
#include "tensor/tensor.h"

namespace trireme::serve {

/// A wire datatype: one of the engine's types, or BYTES (no value).
using WireType = std::optional<tensor::DType>;

/// "FP32", "INT64", "BYTES", ... of the protocol. Throws unsupported for a type without a wire name.
std::string_view wire_name(WireType type);
/// The reverse. Throws invalid_argument for an unknown name.
WireType wire_type(std::string_view name);
/// "TYPE_FP32", ... "TYPE_STRING" of ModelConfig, and back.
std::string config_type_name(WireType type);
WireType config_type(std::string_view name);

/// One named tensor of a request or a response.
struct WireTensor {
  std::string name;
  WireType type;
  tensor::Dims dims;
  tensor::Tensor values;                                    ///< numeric types
  std::vector<std::string> strings;                         ///< BYTES, row-major
  std::shared_ptr<const base::MemoryLease> room = nullptr;  ///< of the strings, where they are many or long
};

/// The memory of so many strings of so many bytes in all, which may be ten times what a request spends on
/// them; null for a few. Throws exhausted.
std::shared_ptr<const base::MemoryLease> room_for_strings(int64_t count, int64_t bytes);

/// Product of the extents; throws invalid_argument in the protocol's words for a negative extent or an
/// overflow.
int64_t wire_elements(std::string_view name, const tensor::Dims& dims);

/// Bytes of a tensor, who keeps them alive, and for messages the model that they are for.
struct WireBytes {
  std::string_view bytes;
  std::shared_ptr<const void> owner = nullptr;
  std::string_view model = {};
};

/// A tensor from the binary extension's bytes, little-endian and row-major. Looks at the bytes where they are
/// aligned for the type, else copies. Throws invalid_argument for a size or element count that does not fit.
WireTensor tensor_from_bytes(std::string name, WireType type, tensor::Dims dims, const WireBytes& from);

/// Gives a tensor of a numeric type its values, of whose extents and size the caller has made sure.
void view_or_copy(WireTensor& tensor, const WireBytes& from);

/// BYTES elements with their 4-byte lengths.
std::string bytes_of_strings(const std::vector<std::string>& strings);

}  // namespace trireme::serve
