// Rounded results of norms: which there are, and their types.
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

int rounded_result(std::string_view op) {
  if (op == "layer_norm" || op == "layer_norm_grad") return 3;
  if (op == "rms_norm_grad" || op == "add_layer_norm") return 2;
  return op == "rms_norm" ? 1 : -1;
}

std::vector<tensor::TensorType> with_rounded(std::vector<tensor::TensorType> plain, const ir::Attrs& attrs) {
  const DType type = rounded_type(attrs);
  if (type != DType::f32) plain.push_back({type, plain[0].shape});
  return plain;
}

}  // namespace trireme::ops
