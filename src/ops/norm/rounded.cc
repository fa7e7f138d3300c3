// Rounded results of norms: which nodes have one, and its type.
#include "ops/norm/rounded.h"

#include "base/error.h"

namespace trireme::ops {

using tensor::DType;

const ir::AttrSpec& rounded_attr() {
  static const ir::AttrSpec attr{"rounded", "string",
                                 "f16 or bf16: a last result is the first one rounded so"};
  return attr;
}

DType rounded_type(const ir::Attrs& attrs) {
  const std::string name = attrs.get_string("rounded", "");
  if (name.empty()) return DType::f32;
  base::require(name == "f16" || name == "bf16", "rounded is ", name, ", takes f16 or bf16");
  return name == "f16" ? DType::f16 : DType::bf16;
}

std::vector<tensor::TensorType> with_rounded(std::vector<tensor::TensorType> plain, const ir::Attrs& attrs) {
  const DType type = rounded_type(attrs);
  if (type != DType::f32) plain.push_back({type, plain[0].shape});
  return plain;
}

}  // namespace trireme::ops
