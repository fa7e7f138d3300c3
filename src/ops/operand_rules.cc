// The table of operand rules: one row for each operator whose kernels read operands that its shape rule
// ignores.
#include "ops/operand_rules.h"

#include <algorithm>
#include <map>

namespace trireme::ops {
namespace {

using tensor::DType;
using tensor::Shape;

/// Operands in order, each a type letter with extents in brackets; no brackets: any shape.
/// Types: * any; T U V W one type wherever the letter stands; H as T, or f32 beside a 16-bit T; I i32 or i64;
/// L i64; J i32; B boolean; F a float of 16 bits or more; N a number of whole bytes or boolean; f f32.
/// Extents: a letter is one extent wherever it stands, a digit itself, . any, a last ... any others;
/// =1 one element of any rank; =1/c one element or [c]; ~ the shape of operand 0.
/// A last + : the operand before it repeats, and none of them may be absent.
struct Row {
  std::string_view op, operands;
};

constexpr Row kRows[] = {
    {"affine_grid", "F I"},
    {"attention", "T U V N U V L"},
    {"attention_bsnd", "T T T N F"},
    {"average_pool", "T[nc...]"},
    {"batch_norm", "T H H H H"},
    {"center_crop_pad", "* I"},
    {"clip", "T T[=1] T[=1]"},
    {"col2im", "T I I"},
    {"concat", "T+"},
    {"conv", "T[nc...] T[oi...] H[o]"},
    {"conv_integer", "T[nc...] U[oi...] T[=1] U[=1/o]"},
    {"conv_transpose", "T[nc...] T[co...] H"},
    {"cum_prod", "* I[=1]"},
    {"cum_sum", "* I[=1]"},
    {"deform_conv", "T[nchw] T[oikl] T[n...] H[o] T"},
    {"dequantize_linear", "T F T"},
    {"dft", "F I[=1] I[=1]"},
    {"dropout", "* F[=1] B[=1]"},
    {"einsum", "T+"},
    {"expand", "* I"},
    {"gemm", "T T H"},
    {"grid_sample", "T[nc...] H[n...]"},
    {"group_norm", "T H H"},
    {"gru", "T H H H J H"},
    {"blackman_window", "I[=1]"},
    {"hamming_window", "I[=1]"},
    {"hann_window", "I[=1]"},
    {"instance_norm", "T H H"},
    {"layer_norm", "T H H"},
    {"lstm", "T H H H J H H H"},
    {"matmul_integer", "T U T U"},
    {"max", "T+"},
    {"max_roi_pool", "T H"},
    {"max_unpool", "T L[~] I"},
    {"mean", "T+"},
    {"mel_weight_matrix", "I[=1] I[=1] I[=1] F[=1] F[=1]"},
    {"min", "T+"},
    {"nll_loss", "T I H"},
    {"non_max_suppression", "f[bn4] f[bcn] I[=1] f[=1] f[=1]"},
    {"one_hot", "N N[=1] *[2]"},
    {"pad", "T I T[=1] I"},
    {"qlinear_conv", "T[nc...] f[=1] T[=1] U[oi...] f[=1/o] U[=1/o] f[=1] V[=1] J[o]"},
    {"qlinear_matmul", "T W T U W U W[=1] V[=1]"},
    {"quantize_linear", "N F *"},
    {"range", "T[=1] T[=1] T[=1]"},
    {"reshape", "* I"},
    {"resize", "* F F I"},
    {"reverse_sequence", "* L"},
    {"rms_norm", "T H"},
    {"rnn", "T H H H J H"},
    {"roi_align", "T[nchw] H[r4] L[r]"},
    {"rotary_embedding", "T H H L"},
    {"slice", "* I I I I"},
    {"softmax_cross_entropy_loss", "T I H"},
    {"split", "* I"},
    {"squeeze", "* I"},
    {"stft", "T I[=1] H[w] I[=1]"},
    {"sum", "T+"},
    {"tile", "* I"},
    {"top_k", "* I[=1]"},
    {"trilu", "* L[=1]"},
    {"unsqueeze", "* I"},
    {"upsample", "* F"},
};

struct Operand {
  char type = '*';
  std::string extents;  // empty: any shape
};

struct Rule {
  std::vector<Operand> operands;
  bool repeats = false;

  const Operand& at(size_t i) const { return operands[std::min(i, operands.size() - 1)]; }
};

Rule parse(std::string_view text) {
  Rule rule;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == ' ') continue;
    if (text[i] == '+') {
      rule.repeats = true;
    } else if (text[i] == '[') {
      const size_t end = text.find(']', i);
      rule.operands.back().extents = text.substr(i + 1, end - i - 1);
      i = end;
    } else {
      rule.operands.push_back({text[i], ""});
    }
  }
  return rule;
}

/// The types and extents that letters stand for in one node.
struct Bound {
  std::map<char, DType> types;
  std::map<char, int64_t> extents;
};

bool is_wide_float(DType t) { return tensor::is_float(t) && tensor::bits_of(t) >= 16; }

/// Returns "" if the type fits, else the expected type.
std::string wanted_type(char rule, DType given, Bound& bound) {
  const auto unless = [](bool fits, std::string_view want) { return std::string(fits ? "" : want); };
  switch (rule) {
    case '*': return "";
    case 'I': return unless(given == DType::i32 || given == DType::i64, "i32 or i64");
    case 'L': return unless(given == DType::i64, "i64");
    case 'J': return unless(given == DType::i32, "i32");
    case 'B': return unless(given == DType::boolean, "bool");
    case 'F': return unless(is_wide_float(given), "a float of 16 bits or more");
    case 'N':
      return unless(tensor::bits_of(given) >= 8 && (!tensor::is_float(given) || is_wide_float(given)),
                    "numbers of whole bytes");
    case 'f': return unless(given == DType::f32, "f32");
    case 'H': {
      const DType like = bound.types.at('T');
      const bool is_half = like == DType::f16 || like == DType::bf16;
      return unless(given == like || (given == DType::f32 && is_half), name_of(like));
    }
    default: {
      const DType like = bound.types.emplace(rule, given).first->second;
      return unless(given == like, name_of(like));
    }
  }
}

/// Number of extents that a rule names: all but a final "...".
size_t named_of(const std::string& rule) { return rule.size() - (rule.ends_with("...") ? 3 : 0); }

/// The extents as far as they are bound, such as "[16,i,3]".
std::string text_of(const std::string& rule, const Bound& bound) {
  const bool is_open = rule.ends_with("...");
  std::string text = "[";
  for (size_t d = 0; d < named_of(rule); ++d) {
    const auto at = bound.extents.find(rule[d]);
    text += d > 0 ? "," : "";
    text += at == bound.extents.end() ? std::string(1, rule[d]) : std::to_string(at->second);
  }
  return text + (is_open ? ",...]" : "]");
}

bool fits(const std::string& rule, const Shape& shape, Bound& bound) {
  const bool is_open = rule.ends_with("...");
  const size_t named = named_of(rule);
  if (is_open ? shape.rank() < named : shape.rank() != named) return false;
  for (size_t d = 0; d < named; ++d) {
    if (rule[d] == '.' || !shape[d].is_static()) continue;
    const bool is_digit = rule[d] >= '0' && rule[d] <= '9';
    const int64_t want =
        is_digit ? rule[d] - '0' : bound.extents.emplace(rule[d], shape[d].value()).first->second;
    if (shape[d].value() != want) return false;
  }
  return true;
}

/// Returns "" if the shape fits, else the expected shape.
std::string wanted_shape(const std::string& rule, const Shape& shape, const Shape& first, Bound& bound) {
  if (rule.empty() || !shape.has_rank()) return "";
  if (rule == "~") {
    const bool is_known = shape.is_static() && first.is_static();
    return is_known && shape != first ? first.to_string() : "";
  }
  if (rule.starts_with("=1")) {
    const std::string other = rule.size() > 3 ? rule.substr(3) : "";
    if (!shape.is_static() || shape.elements() == 1) return "";
    if (other.empty()) return "one element";
    return fits(other, shape, bound) ? "" : "one element or " + text_of(other, bound);
  }
  return fits(rule, shape, bound) ? "" : text_of(rule, bound);
}

void check_operands(std::string_view op, const Rule& rule, const ir::NodeView& n) {
  Bound bound;
  for (size_t i = 0; i < n.in.size(); ++i) {
    base::require(n.present(i) || !rule.repeats, "op '", op, "' lacks operand ", i);
    if (!n.present(i)) continue;
    const Operand& want = rule.at(i);
    const std::string type = wanted_type(want.type, n.in[i].dtype, bound);
    base::require(type.empty(), "op '", op, "' takes operand ", i, " as ", type, ", not ",
                  name_of(n.in[i].dtype));
    const std::string shape = wanted_shape(want.extents, n.in[i].shape, n.in[0].shape, bound);
    base::require(shape.empty(), "op '", op, "' takes operand ", i, " of shape ", shape, ", got ",
                  n.in[i].shape.to_string());
  }
}

}  // namespace

void guard_operands(ir::OpSchema& op) {
  const auto at =
      std::find_if(std::begin(kRows), std::end(kRows), [&](const Row& r) { return r.op == op.name; });
  if (at == std::end(kRows)) return;
  op.infer = [op = op.name, rule = parse(at->operands), dims = op.dims,
              infer = std::move(op.infer)](const ir::NodeView& n) {
    check_operands(op, rule, n);
    return infer ? infer(n) : ir::infer_from_notation(dims, n);
  };
}

}  // namespace trireme::ops
