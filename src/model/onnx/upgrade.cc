// Rewrites old forms of ONNX operators to the newest form: one table row per operator and opset that changed
// it.
#include <algorithm>
#include <array>
#include <limits>

#include "model/onnx/emitter.h"

namespace trireme::model::onnx {
namespace {

using ir::ValueId;
using tensor::DType;
using Upgraded = std::optional<std::vector<ValueId>>;

/// Moves an attribute that is a list of integers to operand `at`, where newer opsets expect it.
void ints_to_operand(Emitter& e, PendingNode& n, std::string_view attr, size_t at) {
  if (!n.attrs.has(attr)) return;
  if (!n.has_input(at)) n.set_input(at, e.ints(n.attrs.get_ints(attr)));
  n.attrs.erase(attr);
}

/// Moves a number attribute to a scalar operand that has the element type of operand 0.
void number_to_operand(Emitter& e, PendingNode& n, std::string_view attr, size_t at) {
  if (!n.attrs.has(attr)) return;
  if (!n.has_input(at)) n.set_input(at, e.scalar_of(e.type(n.in[0]).dtype, n.attrs.get_float(attr, 0)));
  n.attrs.erase(attr);
}

Upgraded axes_to_operand(Emitter& e, PendingNode& n) {
  ints_to_operand(e, n, "axes", 1);
  return std::nullopt;
}

Upgraded slice_1(Emitter& e, PendingNode& n) {
  ints_to_operand(e, n, "starts", 1);
  ints_to_operand(e, n, "ends", 2);
  ints_to_operand(e, n, "axes", 3);
  return std::nullopt;
}

Upgraded pad_1(Emitter& e, PendingNode& n) {
  if (n.attrs.has("paddings")) n.attrs.set("pads", n.attrs.get_ints("paddings")).erase("paddings");
  ints_to_operand(e, n, "pads", 1);
  number_to_operand(e, n, "value", 2);
  return std::nullopt;
}

Upgraded clip_1(Emitter& e, PendingNode& n) {
  number_to_operand(e, n, "min", 1);
  number_to_operand(e, n, "max", 2);
  return std::nullopt;
}

Upgraded dropout_1(Emitter& e, PendingNode& n) {
  if (n.attrs.has("ratio")) {
    n.set_input(
        1, e.constant(tensor::Tensor::scalar<float>(static_cast<float>(n.attrs.get_float("ratio", 0.5)))));
  }
  n.attrs.erase("ratio");
  n.attrs.erase("is_test");
  n.attrs.erase("consumed_inputs");
  if (n.opset >= 10 || n.out_count < 2) return std::nullopt;
  // Before opset 10, the mask had the element type of the data.
  auto results = e.emit_many("Dropout", n.in, n.attrs, 2);
  results[1] = e.emit("Cast", {results[1]}, {{"to", int64_t{1}}});
  return results;
}

/// Before opset 10, k was an attribute.
Upgraded topk_1(Emitter& e, PendingNode& n) {
  if (n.attrs.has("k")) n.set_input(1, e.ints({n.attrs.need_int("k")}));
  n.attrs.erase("k");
  return std::nullopt;
}

/// Before opset 13, all axes from `axis` (default 1) on counted as one: flatten, apply the op to rows, and
/// restore the shape.
Upgraded softmax_1(Emitter& e, PendingNode& n) {
  const int64_t axis = n.attrs.get_int("axis", 1);
  const auto& shape = e.type(n.in[0]).shape;
  if (shape.has_rank() && shape.rank() > 0 && ir::normal_axis(axis, shape.rank()) + 1 == shape.rank()) {
    n.attrs.set("axis", int64_t{-1});
    return std::nullopt;
  }
  const ValueId rows = e.emit("Flatten", {n.in[0]}, {{"axis", axis}});
  const ValueId result = e.emit(n.op_type, {rows}, {{"axis", int64_t{-1}}});
  return std::vector{e.emit("Reshape", {result, e.emit("Shape", {n.in[0]})})};
}

Upgraded batch_norm_1(Emitter&, PendingNode& n) {
  if (n.out_count > 1) base::fail_unsupported("BatchNormalization with training outputs before opset 14");
  if (n.attrs.get_int("spatial", 1) != 1) base::fail_unsupported("BatchNormalization with spatial=0");
  for (std::string_view old : {"spatial", "is_test", "consumed_inputs"}) n.attrs.erase(old);
  return std::nullopt;
}

/// Before opset 18, the number of equal pieces was that of the results, also of those that nobody reads.
Upgraded split_1(Emitter& e, PendingNode& n) {
  ints_to_operand(e, n, "split", 1);
  if (!n.has_input(1)) n.attrs.set("num_outputs", static_cast<int64_t>(n.listed_outputs));
  return std::nullopt;
}

/// The Resize of opset 11 that samples as opset 10 and Upsample did: at asymmetric coordinates.
ValueId resize_asymmetric(Emitter& e, const PendingNode& n, ValueId x, ValueId scales,
                          const char* nearest_mode) {
  std::string mode = n.attrs.get_string("mode", "nearest");
  if (mode == "bilinear") mode = "linear";
  return e.emit("Resize", {x, ir::kNoValue, scales},
                {{"mode", mode},
                 {"coordinate_transformation_mode", std::string("asymmetric")},
                 {"nearest_mode", std::string(nearest_mode)}});
}

/// Upsample rounds down. Its scales were attributes at first.
Upgraded upsample(Emitter& e, PendingNode& n) {
  if (n.attrs.has("scales")) {
    const auto scales = n.attrs.get_floats("scales");
    std::vector<float> values(scales.begin(), scales.end());
    n.set_input(1, e.constant(tensor::Tensor::from<float>({static_cast<int64_t>(values.size())}, values)));
  }
  if (n.attrs.has("height_scale")) {
    const auto height = static_cast<float>(n.attrs.get_float("height_scale", 1));
    const auto width = static_cast<float>(n.attrs.get_float("width_scale", 1));
    n.set_input(1, e.constant(tensor::Tensor::from<float>({4}, {1.0f, 1.0f, height, width})));
  }
  base::require(n.has_input(1), "Upsample has no scales");
  return std::vector{resize_asymmetric(e, n, n.in[0], n.in[1], "floor")};
}

/// In opset 10, `nearest` rounds up along axes that shrink and down along others. No later nearest_mode does
/// both, but axes are sampled apart: one Resize shrinks, a second one enlarges.
Upgraded resize_10(Emitter& e, PendingNode& n) {
  base::require(n.has_input(1), "Resize has no scales");
  if (n.attrs.get_string("mode", "nearest") != "nearest")
    return std::vector{resize_asymmetric(e, n, n.in[0], n.in[1], "floor")};
  const tensor::Tensor* known = e.graph().known(n.in[1]);
  if (known == nullptr) {
    const ValueId one = e.scalar_of(DType::f32, 1);
    const ValueId less = e.emit("Min", {n.in[1], one}), more = e.emit("Max", {n.in[1], one});
    return std::vector{
        resize_asymmetric(e, n, resize_asymmetric(e, n, n.in[0], less, "ceil"), more, "floor")};
  }
  const tensor::Dims dims = known->dims();
  std::vector<float> less, more;
  for (const double scale : known->to_doubles()) {
    less.push_back(static_cast<float>(std::min(scale, 1.0)));
    more.push_back(static_cast<float>(std::max(scale, 1.0)));
  }
  const auto resize = [&](ValueId x, const std::vector<float>& by, const char* nearest_mode) {
    if (std::all_of(by.begin(), by.end(), [](float scale) { return scale == 1; })) return x;
    const ValueId scales = e.constant(tensor::Tensor::from<float>(dims, by));
    return resize_asymmetric(e, n, x, scales, nearest_mode);
  };
  const ValueId y = resize(resize(n.in[0], less, "ceil"), more, "floor");
  return std::vector{y == n.in[0] ? e.emit("Identity", {y}) : y};
}

/// While roi and scales were required operands, empty ones stood for absent ones.
Upgraded resize_11(Emitter& e, PendingNode& n) {
  for (size_t i = 1; i < n.in.size(); ++i) {
    const tensor::Tensor* known = e.graph().known(n.in[i]);
    if (known != nullptr && known->elements() == 0) n.in[i] = ir::kNoValue;
  }
  return std::nullopt;
}

Upgraded scatter(Emitter& e, PendingNode& n) { return std::vector{e.emit("ScatterElements", n.in, n.attrs)}; }

Upgraded roi_align_10(Emitter&, PendingNode& n) {
  n.attrs.set("coordinate_transformation_mode", std::string("output_half_pixel"));
  return std::nullopt;
}

Upgraded grid_sample_16(Emitter&, PendingNode& n) {
  const std::string mode = n.attrs.get_string("mode", "bilinear");
  if (mode == "bilinear") n.attrs.set("mode", std::string("linear"));
  if (mode == "bicubic") n.attrs.set("mode", std::string("cubic"));
  return std::nullopt;
}

/// Scale and bias were per group and are now per channel: repeats each for all channels of its group.
Upgraded group_norm_18(Emitter& e, PendingNode& n) {
  const int64_t groups = n.attrs.need_int("num_groups");
  base::require(groups > 0, "num_groups ", groups, " is below 1");
  const tensor::Shape shape = e.type(n.in[0]).shape;  // a copy, since adding nodes moves the original
  ValueId wide_shape = ir::kNoValue;                  // [groups, channels of a group]
  int64_t channels = -1;
  if (shape.has_rank() && shape.rank() > 1 && shape[1].is_static()) {
    channels = shape[1].value();
    base::require(channels % groups == 0, channels, " channels in ", groups, " groups");
    wide_shape = e.ints({groups, channels / groups});
  } else {  // computed when the graph runs
    const ValueId all = e.emit("Shape", {n.in[0]}, {{"start", int64_t{1}}, {"end", int64_t{2}}});
    // Reshape tells the extent of the list where x has no rank.
    const ValueId each = e.emit("Div", {e.emit("Reshape", {all, e.ints({1})}), e.ints({groups})});
    wide_shape = e.emit("Concat", {e.ints({groups}), each}, {{"axis", int64_t{0}}});
  }
  for (size_t i = 1; i < 3 && i < n.in.size(); ++i) {
    const ValueId column = e.emit("Reshape", {n.in[i], e.ints({groups, 1})});
    n.in[i] = e.emit("Reshape", {e.emit("Expand", {column, wide_shape}), e.ints({channels})});
  }
  return std::nullopt;
}

Upgraded dft_17(Emitter& e, PendingNode& n) {
  n.set_input(2, e.int_scalar(n.attrs.get_int("axis", 1)));
  n.attrs.erase("axis");
  return std::nullopt;
}

/// Before opset 11, a negative index gave a row of off values, as one below -depth does now.
Upgraded one_hot_9(Emitter& e, PendingNode& n) {
  constexpr int64_t kI64 = 7;  // ONNX's number of the type
  const bool is_i64 = e.type(n.in[0]).dtype == DType::i64;
  const ValueId index = is_i64 ? n.in[0] : e.emit("Cast", {n.in[0]}, {{"to", kI64}});
  const ValueId is_negative = e.emit("Less", {index, e.int_scalar(0)});
  const ValueId outside = e.int_scalar(std::numeric_limits<int64_t>::min());
  n.in[0] = e.emit("Where", {is_negative, outside, index});
  return std::nullopt;
}

/// Before opset 7: if `broadcast` is set, operand 1 is aligned at `axis` of operand 0.
Upgraded broadcast_1(Emitter& e, PendingNode& n) {
  const bool is_on = n.attrs.get_int("broadcast", 0) != 0;
  const bool has_axis = n.attrs.has("axis");
  const int64_t axis = n.attrs.get_int("axis", 0);
  for (std::string_view old : {"broadcast", "axis", "consumed_inputs"}) n.attrs.erase(old);
  if (!is_on || !has_axis) return std::nullopt;
  const size_t wide = e.rank(n.in[0]), narrow = e.rank(n.input(1));
  const size_t first = ir::normal_axis(axis, wide);
  base::require(first + narrow <= wide, "broadcast axis ", axis, " leaves no room for the operand");
  std::vector<int64_t> axes;
  for (size_t i = narrow; i < wide - first; ++i) axes.push_back(static_cast<int64_t>(i));
  if (!axes.empty()) n.in[1] = e.emit("Unsqueeze", {n.in[1], e.ints(axes)});
  return std::nullopt;
}

/// Before opset 7, the slope had one number per channel.
Upgraded prelu_1(Emitter& e, PendingNode& n) {
  n.attrs.erase("consumed_inputs");
  const size_t rank = e.rank(n.in[0]), slope = e.rank(n.input(1));
  if (slope != 1 || rank < 3) return std::nullopt;
  std::vector<int64_t> axes;
  for (size_t i = 1; i + 1 < rank; ++i) axes.push_back(static_cast<int64_t>(i));
  n.in[1] = e.emit("Unsqueeze", {n.in[1], e.ints(axes)});
  return std::nullopt;
}

Upgraded reshape_1(Emitter& e, PendingNode& n) {
  ints_to_operand(e, n, "shape", 1);
  n.attrs.erase("consumed_inputs");
  return std::nullopt;
}

Upgraded concat_1(Emitter&, PendingNode& n) {
  if (!n.attrs.has("axis")) n.attrs.set("axis", int64_t{1});
  return std::nullopt;
}

Upgraded drop_consumed(Emitter&, PendingNode& n) {
  n.attrs.erase("consumed_inputs");
  return std::nullopt;
}

Upgraded gemm_1(Emitter&, PendingNode& n) {
  n.attrs.erase("broadcast");
  return std::nullopt;
}

/// Before opset 6, Cast gave its target type by name.
Upgraded cast_1(Emitter&, PendingNode& n) {
  static constexpr std::array<std::string_view, 17> kNames{
      "UNDEFINED", "FLOAT",   "UINT8",  "INT8",   "UINT16", "INT16",     "INT32",      "INT64",   "STRING",
      "BOOL",      "FLOAT16", "DOUBLE", "UINT32", "UINT64", "COMPLEX64", "COMPLEX128", "BFLOAT16"};
  const std::string to = n.attrs.get_string("to", "FLOAT");
  const auto at = std::find(kNames.begin(), kNames.end(), to);
  base::require(at != kNames.end(), "Cast to unknown type '", to, "'");
  n.attrs.set("to", static_cast<int64_t>(at - kNames.begin()));
  return std::nullopt;
}

/// The mode CRD (column-row-depth) of opset 28 is another permutation of the same six axes.
Upgraded space_to_depth(Emitter& e, PendingNode& n) {
  if (n.attrs.get_string("mode", "DCR") != "CRD") {
    n.attrs.erase("mode");
    return std::nullopt;
  }
  const int64_t b = n.attrs.need_int("blocksize");
  const tensor::Shape& shape = e.type(n.in[0]).shape;
  base::require(
      b > 0 && shape.rank() == 4 && shape[1].is_static() && shape[2].is_static() && shape[3].is_static(),
      "SpaceToDepth of ", shape.to_string());
  const int64_t c = shape[1].value(), h = shape[2].value(), w = shape[3].value();
  base::require(h % b == 0 && w % b == 0, "block size ", b, " does not divide ", shape.to_string());
  const ValueId split = e.emit("Reshape", {n.in[0], e.ints({0, c, h / b, b, w / b, b})});
  const ValueId moved = e.emit("Transpose", {split}, {{"perm", std::vector<int64_t>{0, 1, 3, 5, 2, 4}}});
  return std::vector{e.emit("Reshape", {moved, e.ints({0, c * b * b, h / b, w / b})})};
}

struct Upgrade {
  std::string_view op;
  int64_t below;  ///< applies to nodes of opsets before this one
  Upgraded (*rewrite)(Emitter&, PendingNode&);
};

// The oldest change comes first, because a node passes through every row that applies to it.
constexpr Upgrade kUpgrades[] = {
    {"Add", 7, broadcast_1},
    {"Sub", 7, broadcast_1},
    {"Mul", 7, broadcast_1},
    {"Div", 7, broadcast_1},
    {"Pow", 7, broadcast_1},
    {"And", 7, broadcast_1},
    {"Or", 7, broadcast_1},
    {"Xor", 7, broadcast_1},
    {"Equal", 7, broadcast_1},
    {"Less", 7, broadcast_1},
    {"Greater", 7, broadcast_1},
    {"PRelu", 7, prelu_1},
    {"Gemm", 7, gemm_1},
    {"Cast", 6, cast_1},
    {"Reshape", 5, reshape_1},
    {"Concat", 4, concat_1},
    {"Abs", 6, drop_consumed},
    {"Ceil", 6, drop_consumed},
    {"Clip", 6, drop_consumed},
    {"Elu", 6, drop_consumed},
    {"Exp", 6, drop_consumed},
    {"Floor", 6, drop_consumed},
    {"HardSigmoid", 6, drop_consumed},
    {"InstanceNormalization", 6, drop_consumed},
    {"LeakyRelu", 6, drop_consumed},
    {"Log", 6, drop_consumed},
    {"Max", 6, drop_consumed},
    {"Mean", 6, drop_consumed},
    {"Min", 6, drop_consumed},
    {"Neg", 6, drop_consumed},
    {"Reciprocal", 6, drop_consumed},
    {"Relu", 6, drop_consumed},
    {"Selu", 6, drop_consumed},
    {"Sigmoid", 6, drop_consumed},
    {"Sqrt", 6, drop_consumed},
    {"Sum", 6, drop_consumed},
    {"Tanh", 6, drop_consumed},
    {"Squeeze", 13, axes_to_operand},
    {"Unsqueeze", 13, axes_to_operand},
    {"ReduceSum", 13, axes_to_operand},
    {"ReduceMean", 18, axes_to_operand},
    {"ReduceMax", 18, axes_to_operand},
    {"ReduceMin", 18, axes_to_operand},
    {"ReduceProd", 18, axes_to_operand},
    {"ReduceL1", 18, axes_to_operand},
    {"ReduceL2", 18, axes_to_operand},
    {"ReduceLogSum", 18, axes_to_operand},
    {"ReduceLogSumExp", 18, axes_to_operand},
    {"ReduceSumSquare", 18, axes_to_operand},
    {"Slice", 10, slice_1},
    {"Pad", 11, pad_1},
    {"Clip", 11, clip_1},
    {"Dropout", 12, dropout_1},
    {"TopK", 10, topk_1},
    {"Softmax", 13, softmax_1},
    {"LogSoftmax", 13, softmax_1},
    {"Hardmax", 13, softmax_1},
    {"BatchNormalization", 14, batch_norm_1},
    {"Split", 18, split_1},
    {"Upsample", 100, upsample},
    {"Resize", 11, resize_10},
    {"Resize", 100, resize_11},
    {"Scatter", 100, scatter},
    {"RoiAlign", 16, roi_align_10},
    {"GridSample", 20, grid_sample_16},
    {"GroupNormalization", 21, group_norm_18},
    {"DFT", 20, dft_17},
    {"OneHot", 11, one_hot_9},
    {"SpaceToDepth", 100, space_to_depth},
};

}  // namespace

Upgraded upgrade(Emitter& emitter, PendingNode& node) {
  for (const Upgrade& row : kUpgrades) {
    if (row.op != node.op_type || node.opset >= row.below) continue;
    base::require(!node.in.empty(), "the node has no operands");
    if (Upgraded results = row.rewrite(emitter, node)) return results;
  }
  return std::nullopt;
}

}  // namespace trireme::model::onnx
