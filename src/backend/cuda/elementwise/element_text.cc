// Writes element programs as CUDA C++.
#include "backend/cuda/elementwise/element_text.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <sstream>

#include "backend/cuda/elementwise/element_launch.h"
#include "base/error.h"

namespace trireme::cuda {
namespace {

using tensor::DType;

struct FunctionText {
  ElementOp op;
  std::string_view functor;
  int operands;
};
constexpr FunctionText kFunctions[] = {
#define UNARY_OP(name, functor, on) {ElementOp::name##_, #functor, 1},
#define BINARY_OP(name, functor, on) {ElementOp::name##_, #functor, 2},
#include "backend/cuda/elementwise/element_ops.inc"
#undef UNARY_OP
#undef BINARY_OP
};
/// The text of an op's functor; ops that are not functors have 0 operands.
FunctionText function_text(ElementOp op) {
  for (const FunctionText& f : kFunctions) {
    if (f.op == op) return f;
  }
  return {op, "", 0};
}

const char* type_text(ElementType type) {
  switch (type) {
    case ElementType::f32: return "float";
    case ElementType::f64: return "double";
    case ElementType::i64: return "int64_t";
    case ElementType::u64: return "uint64_t";
  }
  return "";
}

const char* memory_text(DType type) {
  switch (type) {
    case DType::f32: return "float";
    case DType::f64: return "double";
    case DType::f16: return "Half";
    case DType::bf16: return "BFloat16";
    case DType::boolean: return "Boolean";
    case DType::i8: return "int8_t";
    case DType::u8: return "uint8_t";
    case DType::i16: return "int16_t";
    case DType::u16: return "uint16_t";
    case DType::i32: return "int32_t";
    case DType::u32: return "uint32_t";
    case DType::i64: return "int64_t";
    case DType::u64: return "uint64_t";
    default: base::fail(base::ErrorCode::internal, "no device type for ", name_of(type));
  }
}

/// Written as a hexadecimal literal, which is exact.
std::string number(double v) {
  if (v != v) return "std::numeric_limits<double>::quiet_NaN()";
  if (std::isinf(v))
    return v > 0 ? "std::numeric_limits<double>::infinity()" : "-std::numeric_limits<double>::infinity()";
  char text[64];
  std::snprintf(text, sizeof text, "%a", v);
  return text;
}

class Writer {
 public:
  explicit Writer(const ElementProgram& program) : p_(program), loops_(element_loops(program)) {
    int64_t least = 8;
    for (const auto& in : p_.inputs) least = std::min<int64_t>(least, tensor::bits_of(in.dtype) / 8);
    for (const auto& out : p_.outputs) least = std::min<int64_t>(least, tensor::bits_of(out.dtype) / 8);
    each_ = static_cast<int>(std::clamp<int64_t>(16 / least, 2, 8));
  }

  ElementText write() {
    out_ << "#include \"elements.h\"\n\nusing C = " << type_text(p_.type) << ";\n\n"
         << "template <int N>\nDEVICE void items(const Arguments& p, int64_t i) {\n";
    parameters();
    for (size_t k = 0; k < p_.inputs.size(); ++k) read(k);
    for (size_t k = 0; k < p_.outputs.size(); ++k)
      out_ << "  Some<" << memory_text(p_.outputs[k].dtype) << ", N> y" << k << ";\n";
    out_ << "  UNROLL\n  for (int j = 0; j < N; ++j) {\n";
    for (size_t r : registers()) out_ << "    C r" << r << ";\n";
    for (size_t s = 0; s < p_.steps.size(); ++s) step(s);
    for (size_t k = 0; k < p_.outputs.size(); ++k) {
      out_ << "    y" << k << ".item[j] = stored<" << memory_text(p_.outputs[k].dtype) << ">(r"
           << int{p_.outputs[k].reg} << ");\n";
    }
    out_ << "  }\n";
    for (size_t k = 0; k < p_.outputs.size(); ++k)
      out_ << "  store<" << memory_text(p_.outputs[k].dtype) << ", N>(p.out[" << k << "], i, y" << k
           << ");\n";
    out_ << "}\n\nKERNEL(" << kElementThreads << ") elements(const Arguments p) {\n"
         << "  constexpr int N = " << each_ << ";\n"
         << "  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x * N;\n"
         << "  int64_t i = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * N;\n"
         << "  for (; i + N <= p.count; i += stride) items<N>(p, i);\n"
         << "  for (; i < p.count; ++i) items<1>(p, i);\n}\n";
    return {out_.str(), each_};
  }

 private:
  std::vector<size_t> registers() const {
    std::vector<size_t> all;
    for (const ElementStep& s : p_.steps) {
      if (std::find(all.begin(), all.end(), size_t{s.dst}) == all.end()) all.push_back(s.dst);
    }
    return all;
  }

  void parameters() {
    for (size_t s = 0; s < p_.steps.size(); ++s) {
      if (function_text(p_.steps[s].op).operands > 0)
        out_ << "  const double q" << s << "[2] = {" << number(p_.steps[s].p[0]) << ", "
             << number(p_.steps[s].p[1]) << "};\n";
    }
  }

  /// Declares a<k>[N]: the elements of operand k for elements i ... i + N of the results.
  void read(size_t k) {
    const ElementLoops::Source& source = loops_.sources[k];
    const std::string type = memory_text(p_.inputs[k].dtype);
    out_ << "  C a" << k << "[N];\n";
    if (source.form == ElementLoops::Form::dense) {
      out_ << "  load<" << type << ", N>(p.in[" << k << "], i, a" << k << ");\n";
    } else if (source.form == ElementLoops::Form::scalar) {
      out_ << "  load_one<" << type << ", N>(p.in[" << k << "], 0, a" << k << ");\n";
    } else if (loops_.extent.back() % each_ == 0) {
      // All N elements lie in one row.
      place("i", k);
      const bool aligned = std::all_of(source.steps.begin(), source.steps.end() - 1,
                                       [&](int64_t s) { return s % each_ == 0; });
      const char* how = source.steps.back() == 0              ? "load_one"
                        : source.steps.back() == 1 && aligned ? "load"
                                                              : "";
      if (*how != '\0') {
        out_ << "  " << how << "<" << type << ", N>(p.in[" << k << "], at" << k << ", a" << k << ");\n";
      } else {
        out_ << "  for (int j = 0; j < N; ++j) a" << k << "[j] = load_at<" << type << ", C>(p.in[" << k
             << "], at" << k << " + j * " << source.steps.back() << "LL);\n";
      }
    } else {
      out_ << "  UNROLL\n  for (int j = 0; j < N; ++j) {\n  ";
      place("i + j", k);
      out_ << "    a" << k << "[j] = load_at<" << type << ", C>(p.in[" << k << "], at" << k << ");\n  }\n";
    }
  }

  /// Declares at<k>: the index at which element `index` of the results reads operand k. Extents are
  /// constants, so the compiler turns divisions into multiplications.
  void place(const std::string& index, size_t k) {
    const bool is_small = loops_.count <= INT32_MAX;
    const std::string unsigned_type = is_small ? "uint32_t" : "uint64_t";
    const std::vector<int64_t>& steps = loops_.sources[k].steps;
    out_ << "  int64_t at" << k << " = 0;\n  {\n    " << unsigned_type << " rest = static_cast<"
         << unsigned_type << ">(" << index << ");\n";
    for (size_t d = steps.size(); d-- > 0;) {
      if (d > 0) {
        if (steps[d] != 0)
          out_ << "    at" << k << " += static_cast<int64_t>(rest % " << loops_.extent[d] << "u) * "
               << steps[d] << "LL;\n";
        out_ << "    rest /= " << loops_.extent[d] << "u;\n";
      } else if (steps[d] != 0) {
        out_ << "    at" << k << " += static_cast<int64_t>(rest) * " << steps[d] << "LL;\n";
      }
    }
    out_ << "  }\n";
  }

  std::string value(ElementRef ref) const {
    switch (ref.kind) {
      case ElementRef::Kind::reg: return base::concat("r", int{ref.index});
      case ElementRef::Kind::input: return base::concat("a", int{ref.index}, "[j]");
      default: return base::concat("static_cast<C>(", number(p_.constants[ref.index]), ")");
    }
  }

  void step(size_t s) {
    const ElementStep& step = p_.steps[s];
    const FunctionText f = function_text(step.op);
    out_ << "    r" << int{step.dst} << " = ";
    if (f.operands == 1)
      out_ << "static_cast<C>(math::" << f.functor << "(q" << s << ")(" << value(step.a) << "));\n";
    else if (f.operands == 2)
      out_ << "static_cast<C>(math::" << f.functor << "(q" << s << ")(" << value(step.a) << ", "
           << value(step.b) << "));\n";
    else if (step.op == ElementOp::select_)
      out_ << value(step.a) << " != C(0) ? " << value(step.b) << " : " << value(step.c) << ";\n";
    else if (step.op == ElementOp::muladd_)
      out_ << value(step.a) << " * " << value(step.b) << " + " << value(step.c) << ";\n";
    else
      out_ << value(step.a) << ";\n";
  }

  const ElementProgram& p_;
  const ElementLoops loops_;
  int each_ = 4;
  std::ostringstream out_;
};

}  // namespace

ElementText element_text(const ElementProgram& program) { return Writer(program).write(); }

}  // namespace trireme::cuda
