// cross_entropy in steps, for classes that are split over ranks: statistics of each part of the classes,
// their total, and the loss. Reductions between the steps give the largest scores and sums over all parts.
#include "ops/cut_notation.h"
#include "ops/loss/loss_cuts.h"
#include "ops/loss/loss_kernels.h"
#include "ops/table.h"

namespace trireme::ops {
namespace {

using tensor::Dim;
using tensor::DType;
using tensor::Shape;
using tensor::TensorType;

const char* const kNoGrad = "made after differentiation: cross_entropy_grad is the gradient of parts too";

std::vector<ir::AttrSpec> part_attrs(std::vector<ir::AttrSpec> more) {
  std::vector<ir::AttrSpec> all{{"ignore_index", "int", "rows with this target count nowhere, default -100"},
                                {"label_smoothing", "float", "share of the mass spread evenly, default 0"},
                                {"classes", "int", "classes in all, default as many as scores that count"}};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

/// Number of sums per part: exponentials, the target's score, whether an earlier class ties; with smoothing
/// also the sum of scores.
int64_t part_sums(const ir::Attrs& a) { return a.get_float("label_smoothing", 0) != 0 ? 4 : 3; }

std::vector<Dim> fixed_rows_of(const ir::NodeView& n, size_t operand) {
  const Shape& x = n.in[operand].shape;
  base::require(x.is_static() && x.rank() >= 1, "parts of classes need fixed extents, not ", x.to_string());
  return {x.dims().begin(), x.dims().end() - 1};
}

/// Scores [rows..., classes] and targets [rows...] -> maxima [rows..., parts], sums [3 or 4, rows..., parts].
std::vector<TensorType> infer_part(const ir::NodeView& n) {
  std::vector<Dim> peaks = fixed_rows_of(n, 0);
  require_padding(n);
  base::require(n.in[1].shape == Shape(peaks), "targets ", n.in[1].shape.to_string(), " for scores ",
                n.in[0].shape.to_string());
  base::require(n.in[1].dtype == DType::i64 || n.in[1].dtype == DType::i32,
                "targets are i32 or i64, given: ", name_of(n.in[1].dtype));
  peaks.emplace_back(n.attrs.get_int("parts", 1));
  std::vector<Dim> sums = peaks;
  sums.insert(sums.begin(), Dim(part_sums(n.attrs)));
  const DType type = statistics_of(n.in[0].dtype);
  return {{type, Shape(std::move(peaks))}, {type, Shape(std::move(sums))}};
}

ir::CutRule cut_part(const ir::NodeView& n) {
  const std::string rows = letters(n.in[1].shape.rank());
  if (n.attrs.get_int("padded", 0) != 0) {  // padded parts were cut already
    return {
        .notation =
            CutNotation(n).in(0, rows + ".").in(1, rows).out(0, rows + ".").out(1, "." + rows + ".").text()};
  }
  const std::string text =
      CutNotation(n).in(0, rows + "v").in(1, rows).out(0, rows + "v").out(1, "." + rows + "v").text();
  // `first` describes a single run of classes, so a part must not consist of sections.
  return {.notation = text, .sections = {{false, 0, rows.size(), 1}}, .uneven = "v"};
}

void localise_part(ir::LocalNode& n) {
  const int64_t classes = n.global.in_dims(0).back();
  n.attrs.set("parts", n.out[0].back());
  n.attrs.set("classes", n.global.attrs.get_int("classes", classes));
  n.attrs.set("first", n.global.attrs.get_int("first", 0) + n.in_begin[0].back());
}

ir::OpSchema part_schema() {
  return {.name = "cross_entropy_part",
          .doc =
              "of each part of the classes the largest score m and, for cross_entropy_total, sum exp(x - m), "
              "the target's score, whether an earlier class has m; operands logits, target",
          .cut = cut_part,
          .localise = localise_part,
          .min_in = 2,
          .max_in = 2,
          .min_out = 2,
          .max_out = 2,
          .attrs =
              part_attrs({{"parts", "int", "parts of equal length, the last ones may be shorter, default 1"},
                          {"first", "int", "the class of the first score, default 0"},
                          {"padded", "int", "scores behind the last class, which count nowhere, default 0"}}),
          .infer = infer_part,
          .cost =
              [](const ir::NodeView& n) {
                return ir::Cost{.flop = 20 * static_cast<double>(n.in[0].shape.elements().value_or(0)),
                                .bytes = static_cast<double>(tensor::bytes_of(n.in[0])) +
                                         static_cast<double>(tensor::bytes_of(n.in[1]))};
              },
          .why_no_grad = kNoGrad};
}

/// Maxima and sums of the parts, and the largest score [rows...] -> totals [2 or 3, rows...].
ir::OpSchema total_schema() {
  return {.name = "cross_entropy_total",
          .doc =
              "sums over the parts of a cross_entropy_part relative to the largest score of all: "
              "exponentials, the target's score (a little below where an earlier class ties), scores; "
              "operands maxima, sums, largest",
          .cut =
              [](const ir::NodeView& n) {
                const std::string rows = letters(n.in[2].shape.rank());
                CutNotation notation(n);
                notation.in(0, rows + "v").in(1, "." + rows + "v").in(2, rows).out(0, "." + rows);
                return ir::CutRule{.notation = notation.text(), .sums = "v"};
              },
          .min_in = 3,
          .max_in = 3,
          .infer =
              [](const ir::NodeView& n) {
                std::vector<Dim> dims = fixed_rows_of(n, 1);
                base::require(n.in[2].shape == Shape(fixed_rows_of(n, 0)), "one largest score for each row");
                dims[0] = Dim(dims[0].value() - 1);
                return std::vector<TensorType>{{n.in[0].dtype, Shape(std::move(dims))}};
              },
          .why_no_grad = kNoGrad};
}

ir::OpSchema join_schema() {
  return {.name = "cross_entropy_join",
          .doc =
              "the results of cross_entropy from the largest scores and the totals of its rows; operands "
              "largest, totals, target",
          .cut =
              [](const ir::NodeView& n) {
                const std::string rows = letters(n.in[0].shape.rank());
                CutNotation notation(n);
                notation.in(0, rows).in(1, "." + rows).in(2, rows).out(1, rows);
                return ir::CutRule{.notation = notation.text(), .sums = rows};
              },
          .min_in = 3,
          .max_in = 3,
          .max_out = 4,
          .attrs = part_attrs({{"z_loss", "float", "factor of the square of log sum exp, default 0"}}),
          .infer =
              [](const ir::NodeView& n) {
                base::require(n.in[2].shape == n.in[0].shape, "one target for each row");
                base::require(n.attrs.need_int("classes") >= 1, "a loss over no classes");
                const TensorType rows = n.in[0], one{rows.dtype, Shape{}};
                return std::vector<TensorType>{one, rows, one, one};
              },
          .why_no_grad = kNoGrad};
}

}  // namespace

std::vector<ir::OpDef> class_parts_ops() {
  return {{part_schema(), cross_entropy_part_cpu_kernels()},
          {total_schema(), cross_entropy_total_cpu_kernels()},
          {join_schema(), cross_entropy_join_cpu_kernels()}};
}

}  // namespace trireme::ops
