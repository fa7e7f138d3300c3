// random_normal, random_uniform (and _like), bernoulli, multinomial: schemas.
#include "ops/random/random_ops.h"

#include "ops/elementwise/cast.h"
#include "ops/shape/shape_rules.h"
#include "ops/table.h"

namespace trireme::ops {
namespace {

using ir::NodeView;
using tensor::DType;
using Types = std::vector<tensor::TensorType>;

DType dtype_or(const NodeView& n, DType fallback) {
  return n.attrs.has("dtype") ? dtype_from_onnx(n.attrs.need_int("dtype")) : fallback;
}

Types infer_shaped(const NodeView& n) {
  return {{dtype_or(n, DType::f32), tensor::Shape::of(n.attrs.get_ints("shape"))}};
}
Types infer_like(const NodeView& n) { return {{dtype_or(n, n.in[0].dtype), n.in[0].shape}}; }

Types infer_multinomial(const NodeView& n) {
  const tensor::Shape& x = n.in[0].shape;
  base::require(!x.has_rank() || x.rank() == 2, "multinomial takes [batch, classes]");
  base::require(!x.has_rank() || !x[1].is_static() || x[1].value() > 0,
                "multinomial of no class: ", x.to_string());
  const int64_t samples = n.attrs.get_int("sample_size", 1);
  return {{dtype_or(n, DType::i32), {x.has_rank() ? x[0] : tensor::Dim::unknown(), samples}}};
}

ir::OpSchema schema(std::string name, std::string onnx, std::string doc, size_t operands, ir::InferFn infer) {
  ir::OpSchema s{.name = std::move(name), .doc = std::move(doc), .min_in = operands, .max_in = operands};
  s.infer = std::move(infer);
  s.onnx = std::move(onnx);
  s.why_no_grad = "random draws do not depend on the operands differentiably";
  s.why_no_cut = "draws count the elements that are drawn: ranks draw the whole to agree";
  s.is_random = true;
  s.attrs = {{"dtype", "int", "ONNX number of the result's type"},
             {"seed", "float", "any number; absent: 0, in an ONNX file: one of the node's own"}};
  return s;
}

}  // namespace

std::vector<ir::OpDef> random_ops() {
  std::vector<ir::OpDef> ops;
  const auto add = [&ops](ir::OpSchema s, std::vector<ir::AttrSpec> attrs, std::vector<ir::Kernel> kernels) {
    s.attrs.insert(s.attrs.end(), attrs.begin(), attrs.end());
    ops.push_back({std::move(s), std::move(kernels)});
  };
  const std::vector<ir::AttrSpec> normal{{"mean", "float", "default 0"}, {"scale", "float", "default 1"}};
  const std::vector<ir::AttrSpec> uniform{{"low", "float", "default 0"}, {"high", "float", "default 1"}};
  const std::vector<ir::AttrSpec> shape{{"shape", "ints", "extents of the result"}};
  const auto both = [&shape](std::vector<ir::AttrSpec> a) {
    a.insert(a.end(), shape.begin(), shape.end());
    return a;
  };
  add(schema("random_normal", "RandomNormal", "y ~ N(mean, scale^2)", 0, infer_shaped), both(normal),
      random_cpu_kernels(true));
  add(schema("random_normal_like", "RandomNormalLike", "y ~ N(mean, scale^2), shaped like x", 1, infer_like),
      normal, random_cpu_kernels(true));
  add(schema("random_uniform", "RandomUniform", "y ~ U[low, high)", 0, infer_shaped), both(uniform),
      random_cpu_kernels(false));
  add(schema("random_uniform_like", "RandomUniformLike", "y ~ U[low, high), shaped like x", 1, infer_like),
      uniform, random_cpu_kernels(false));
  add(schema("bernoulli", "Bernoulli", "y = 1 with probability x, else 0", 1, infer_like), {},
      bernoulli_cpu_kernels());
  add(schema("multinomial", "Multinomial", "class indices drawn by unnormalised log probabilities", 1,
             infer_multinomial),
      {{"sample_size", "int", "draws per row, default 1"}}, multinomial_cpu_kernels());
  return ops;
}

}  // namespace trireme::ops
