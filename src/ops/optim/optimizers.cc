// Schemas of the optimizers' update ops, of gradient norms and clipping, and of running averages.
#include "ops/cut.h"
#include "ops/optim/update_layout.h"
#include "ops/table.h"
#include "ops/precision_rules.h"

namespace trireme::ops {
namespace {

using tensor::DType;
using tensor::Shape;
using tensor::TensorType;

const char* const kNoGrad = "it runs after the gradients: nothing is differentiated through an update";

const char* const kHeldAlike =
    "a parameter, its gradient and states are held alike, in parts or whole: passes/partition/infer_shards "
    "checks them";
const char* const kOfParts = "its caller adds up what ranks find for their parts";

/// The states of each update op, as update_layout() returns them.
struct NamedLayout {
  std::string_view name;
  UpdateLayout layout;
};
constexpr NamedLayout kLayouts[] = {{"sgd_update", {.states = 0, .is_elementwise = true}},
                                    {"momentum_update", {.states = 1, .is_elementwise = true}},
                                    {"adam_update", {.states = 2, .is_elementwise = true}},
                                    {"lamb_update", {.states = 2, .takes_squares = true}},
                                    {"lars_update", {.states = 1, .takes_squares = true}},
                                    {"adafactor_update", {.states = 2}},
                                    {"muon_update", {.states = 1}},
                                    {"adafactor_vector_update", {.states = 1}}};

const NamedLayout* find_layout(std::string_view name) {
  const auto at = std::find_if(std::begin(kLayouts), std::end(kLayouts),
                               [&](const NamedLayout& l) { return l.name == name; });
  return at == std::end(kLayouts) ? nullptr : at;
}

/// Requires operand i, if present, to be a scalar of one of the types.
void need_scalar(const ir::NodeView& n, size_t i, std::initializer_list<DType> accepted, const char* what) {
  if (!n.present(i)) return;
  const TensorType& t = n.in[i];
  base::require(std::find(accepted.begin(), accepted.end(), t.dtype) != accepted.end(), what, " is ",
                name_of(t.dtype));
  base::require(!t.shape.has_rank() || t.shape.rank() == 0, what, " must be a scalar, is ",
                t.shape.to_string());
}

/// Requires operand i to have the type of operand `like`.
void need_same(const ir::NodeView& n, size_t i, size_t like) {
  base::require(n.in[i] == n.in[like], "operand ", i, " is ", n.in[i].to_string(), ", the parameter ",
                n.in[like].to_string());
}

/// Checks the row and column factors of a matrix parameter [..., r, c]: [..., r, 1] and [..., 1, c].
void check_factors(const ir::NodeView& n, const UpdateLayout& layout, size_t group) {
  const tensor::Dims dims = n.in_dims(layout.param(group));
  base::require(dims.size() >= 2, "the factored second moment is for matrices, found rank ", dims.size());
  for (size_t s = 0; s < 2; ++s) {
    tensor::Dims want = dims;
    want[dims.size() - (s == 0 ? 1 : 2)] = 1;
    base::require(n.in_dims(layout.state(group, s)) == want, "factor ", s, " of shape ",
                  n.in[layout.state(group, s)].shape.to_string(), " for a parameter ",
                  n.in[layout.param(group)].shape.to_string());
  }
}

/// Checks the gathered sums of squares: two for each block of every part.
void check_squares(const ir::NodeView& n, const UpdateLayout& layout) {
  const std::vector<int64_t> blocks = n.attrs.get_ints("blocks");
  const size_t operands = group_operands(n.attrs, n.in.size());
  base::require(blocks.size() == layout.groups(operands), "blocks: one number a parameter");
  int64_t total = 0;
  for (int64_t b : blocks) total += b;
  const TensorType want{DType::f64, Shape{2 * total * n.attrs.get_int("parts", 1)}};
  const TensorType& squares = n.in[operands - 1];
  base::require(squares == want, "squares are ", squares.to_string(), ", not ", want.to_string());
}

/// The rounded copies: one result each, with the type of the operand to be overwritten if there is one.
void infer_copies(const ir::NodeView& n, const UpdateCopies& copies, const UpdateLayout& layout,
                  std::vector<TensorType>& out) {
  if (copies.groups.empty()) return;
  const std::string rounded = n.attrs.get_string("copy_type", "");
  base::require(rounded == "bf16" || rounded == "f16", "copies are rounded to bf16 or f16, not '", rounded,
                "'");
  const auto groups = static_cast<int64_t>(layout.groups(copies.first_operand));
  for (size_t c = 0; c < copies.groups.size(); ++c) {
    const int64_t group = copies.groups[c], before = c == 0 ? -1 : copies.groups[c - 1];
    base::require(group > before && group < groups, "copies: ascending numbers of ", groups,
                  " groups, found ", group, " after ", before);
    const TensorType& param = n.in[layout.param(static_cast<size_t>(group))];
    base::require(param.dtype == DType::f32, "copies are of f32 parameters");
    const size_t operand = copies.first_operand + c;
    out.push_back({copies.is_bf16 ? DType::bf16 : DType::f16, param.shape});
    base::require(!n.present(operand) || n.in[operand] == out.back(), "operand ", operand, " is ",
                  n.in[operand].to_string(), ", the copy is ", out.back().to_string());
  }
}

/// Types of the results: parameters and states group by group, then the copies.
std::vector<TensorType> infer_update(std::string_view op, const ir::NodeView& n) {
  const UpdateLayout layout = update_layout(op);
  const size_t copied = n.attrs.get_ints(ir::kCopiesAttr).size();
  base::require(n.in.size() >= kUpdateScalars + copied, "an update of ", n.in.size(), " operands writes ",
                copied, " copies");
  const size_t operands = n.in.size() - copied;
  base::require((operands - kUpdateScalars) % layout.operands() == 0 || layout.has_squares(operands),
                "an update takes ", kUpdateScalars, " scalars and groups of ", layout.operands(), ", found ",
                operands, " operands");
  if (layout.has_squares(operands)) check_squares(n, layout);
  need_scalar(n, kUpdateLr, {DType::f32, DType::f64}, "learning rate");
  need_scalar(n, kUpdateStep, {DType::i64}, "step");
  need_scalar(n, kUpdateGradScale, {DType::f32, DType::f64}, "gradient scale");
  need_scalar(n, kUpdateSkip, {DType::boolean}, "skip");
  std::vector<TensorType> out;
  for (size_t g = 0; g < layout.groups(operands); ++g) {
    const TensorType& param = n.in[layout.param(g)];
    base::require(
        param.dtype == n.in[kUpdateScalars].dtype && (param.dtype == DType::f32 || param.dtype == DType::f64),
        "parameters of one update are all f32 or all f64, found ", name_of(param.dtype));
    base::require(param.shape.is_static(), "an update of the dynamic shape ", param.shape.to_string());
    need_same(n, layout.grad(g), layout.param(g));
    if (op == "adafactor_update") check_factors(n, layout, g);
    if (op == "muon_update") base::require(param.shape.rank() == 2, "muon updates matrices only");
    out.push_back(param);
    for (size_t s = 0; s < layout.states; ++s) {
      if (op != "adafactor_update") need_same(n, layout.state(g, s), layout.param(g));
      out.push_back(n.in[layout.state(g, s)]);
    }
  }
  infer_copies(n, UpdateCopies(n.attrs, layout, n.in.size()), layout, out);
  return out;
}

/// Each result replaces a parameter or state of its group. `operands` does not include copies.
std::vector<ir::StateUpdate> group_updates(const UpdateLayout& layout, size_t operands) {
  std::vector<ir::StateUpdate> list;
  for (size_t g = 0; g < layout.groups(operands); ++g) {
    list.push_back({layout.param_result(g), layout.param(g)});
    for (size_t s = 0; s < layout.states; ++s)
      list.push_back({layout.state_result(g, s), layout.state(g, s)});
  }
  return list;
}

/// Work per parameter element in f32; f64 moves twice the bytes, copies move 2 more.
struct ElementCost {
  double flop, bytes;
};

ir::CostFn cost_per_element(std::string_view op, ElementCost each) {
  return [layout = update_layout(op), each](const ir::NodeView& n) {
    ir::Cost cost;
    const UpdateCopies copies(n.attrs, layout, n.in.size());
    const auto elements = [&](size_t g) {
      return static_cast<double>(n.in[layout.param(g)].shape.elements().value_or(0));
    };
    for (size_t g = 0; g < layout.groups(copies.first_operand); ++g) {
      cost.flop += each.flop * elements(g);
      cost.bytes += each.bytes * elements(g) * (n.in[layout.param(g)].dtype == DType::f64 ? 2 : 1);
    }
    for (const int64_t g : copies.groups) cost.bytes += 2 * elements(static_cast<size_t>(g));
    return cost;
  };
}

/// The elementwise part, and x x^T, A A and B x in each iteration.
ir::Cost muon_cost(const ir::NodeView& n) {
  ir::Cost cost = cost_per_element("muon_update", {10, 44})(n);
  const double steps = static_cast<double>(n.attrs.get_int("steps", 5));
  const UpdateLayout layout = update_layout("muon_update");
  for (size_t g = 0; g < layout.groups(group_operands(n.attrs, n.in.size())); ++g) {
    const tensor::Dims d = n.in_dims(layout.param(g));
    const double low = static_cast<double>(std::min(d[0], d[1]));
    const double high = static_cast<double>(std::max(d[0], d[1]));
    cost.flop += steps * 2 * low * low * (2 * high + low);
  }
  return cost;
}

std::vector<ir::AttrSpec> with_common(std::vector<ir::AttrSpec> attrs) {
  attrs.push_back({"weight_decay", "float", "default 0"});
  attrs.push_back({"lr_scale", "float", "factor on the learning rate, default 1"});
  return attrs;
}

std::vector<ir::AttrSpec> with_copies(std::vector<ir::AttrSpec> attrs) {
  attrs.push_back({ir::kCopiesAttr, "ints", "groups whose parameter is written rounded too, default none"});
  attrs.push_back({"copy_type", "string", "bf16 or f16: the type of the copies"});
  return attrs;
}

/// Makes an update op from the parts that differ: text, attributes, work per element and kernels.
ir::OpDef update_op(std::string name, std::string doc, std::vector<ir::AttrSpec> attrs, ElementCost each,
                    std::vector<ir::Kernel> kernels) {
  ir::OpSchema schema{
      .name = name,
      .doc = std::move(doc),
      .why_no_cut = kHeldAlike,
      .min_in = 2,
      .max_in = ir::kVariadic,
      .min_out = 0,
      .max_out = ir::kVariadic,
      .attrs = with_copies(with_common(std::move(attrs))),
      .infer = [name](const ir::NodeView& n) { return infer_update(name, n); },
      .cost = cost_per_element(name, each),
      .why_no_grad = kNoGrad,
      .updates = [layout = update_layout(name)](size_t operands) { return group_updates(layout, operands); }};
  if (name == "muon_update") schema.cost = muon_cost;
  return {std::move(schema), std::move(kernels)};
}

std::vector<ir::AttrSpec> momentum_attrs() {
  return {{"momentum", "float", "mu"},
          {"dampening", "float", "default 0"},
          {"nesterov", "int", "1: look ahead, default 0"}};
}
std::vector<ir::AttrSpec> moment_attrs(std::vector<ir::AttrSpec> more) {
  std::vector<ir::AttrSpec> attrs{{"beta1", "float", "default 0.9"},
                                  {"beta2", "float", "default 0.999"},
                                  {"epsilon", "float", "outside the root"}};
  attrs.insert(attrs.end(), more.begin(), more.end());
  return attrs;
}
std::vector<ir::AttrSpec> factor_attrs() {
  return {{"beta2_decay", "float", "beta2 = 1 - t^beta2_decay, default -0.8"},
          {"epsilon1", "float", "floor of the root of the second moment, default the type's epsilon"},
          {"epsilon2", "float", "floor of RMS(p), default 1e-3"},
          {"clip_threshold", "float", "d: RMS(u) is at most d, default 1"}};
}

/// The attributes for gathering the sums of squares of the ranks' parts.
std::vector<ir::AttrSpec> with_squares(std::vector<ir::AttrSpec> attrs) {
  attrs.push_back({"blocks", "ints", "of each parameter: blocks of its first dimension on this rank"});
  attrs.push_back({"parts", "int", "ranks whose sums of squares the last operand holds"});
  return attrs;
}

/// Has the operands of the update for which it computes norms.
ir::OpDef trust_squares_op() {
  ir::OpSchema schema{
      .name = "trust_squares",
      .doc =
          "(operands of lamb_update or lars_update) -> f64: for each block of each parameter the sum of "
          "squares of "
          "p, then for each that of the step u (lamb) or of g (lars): what trust ratios need of a part",
      .why_no_cut = kOfParts,
      .min_in = 2,
      .max_in = ir::kVariadic,
      .attrs =
          with_common(moment_attrs({{"rule", "string", "lamb or lars"},
                                    {"grad_averaging", "int", "as in lamb_update"},
                                    {"adapt", "int", "as in the update"},
                                    {"momentum", "float", "not read"},
                                    {"eta", "float", "not read"},
                                    {"blocks", "ints", "of each parameter: blocks of its first dimension"}})),
      .infer =
          [](const ir::NodeView& n) {
            infer_update(n.attrs.get_string("rule", "") + "_update", n);
            int64_t total = 0;
            for (int64_t b : n.attrs.get_ints("blocks")) total += b;
            return std::vector<TensorType>{{DType::f64, Shape{2 * total}}};
          },
      .why_no_grad = kNoGrad};
  return {std::move(schema), trust_squares_cpu_kernels()};
}

std::vector<ir::OpDef> gradient_descent_ops() {
  const ir::AttrSpec adapt{"adapt", "int", "0: ratio 1, for biases and norms; default 1"};
  return {
      update_op("sgd_update", "p -= lr (g + weight_decay p) for each group (p, g)", {}, {5, 12},
                sgd_update_cpu_kernels()),
      update_op(
          "momentum_update",
          "v = mu v + (1 - dampening) (g + weight_decay p), p -= lr v for each group (p, g, v); v = g at "
          "step 1",
          momentum_attrs(), {8, 20}, momentum_update_cpu_kernels()),
      update_op(
          "lars_update",
          "v = mu v + lr eta |p| / (|g| + weight_decay |p| + eps) (g + weight_decay p), p -= v for each "
          "group (p, g, v)",
          with_squares({{"momentum", "float", "mu"},
                        {"eta", "float", "trust coefficient, default 0.001"},
                        {"epsilon", "float", "default 1e-8"},
                        adapt}),
          {12, 28}, lars_update_cpu_kernels()),
  };
}

std::vector<ir::OpDef> adaptive_ops() {
  return {
      update_op(
          "adam_update",
          "m, v = moments of g; p -= lr (m^ / (sqrt v^ + eps) + weight_decay p) for each group (p, g, m, "
          "v)",
          moment_attrs({{"decoupled", "int", "1 (AdamW) or 0: weight_decay p is added to g"}}), {15, 28},
          adam_update_cpu_kernels()),
      update_op("lamb_update",
                "u = m^ / (sqrt v^ + eps) + weight_decay p, p -= lr |p| / |u| u for each group (p, g, m, v)",
                with_squares(moment_attrs({{"grad_averaging", "int", "0: m = beta1 m + g; default 1"},
                                           {"adapt", "int", "0: ratio 1, for biases and norms; default 1"}})),
                {30, 40}, lamb_update_cpu_kernels()),
      trust_squares_op(),
      update_op(
          "adafactor_update",
          "R, C = running row and column means of g^2; u = g / sqrt(R C / mean R) clipped, p -= max(eps2, "
          "RMS p) min(lr, 1 / sqrt t) u for each group (p, g, R, C)",
          factor_attrs(), {20, 24}, adafactor_update_cpu_kernels()),
      update_op("adafactor_vector_update", "adafactor_update with the full second moment: (p, g, v)",
                factor_attrs(), {20, 36}, adafactor_vector_update_cpu_kernels()),
      update_op(
          "muon_update",
          "b = mu b + (1 - mu) g; p -= lr scale orthogonal(b) by a quintic Newton-Schulz iteration, for "
          "each matrix (p, g, b)",
          {{"momentum", "float", "mu, default 0.95"},
           {"nesterov", "int", "default 1"},
           {"epsilon", "float", "floor of the norm, default 1e-7"},
           {"coefficients", "floats", "of the quintic"},
           {"steps", "int", "iterations, default 5"},
           {"iterate", "string", "f32, or bf16: rounded after every product"},
           {"adjust", "string", "original: sqrt(max(1, rows / cols)); match_rms_adamw"}},
          {}, muon_update_cpu_kernels()),
  };
}

/// (state, value, flag?) -> new state.
std::vector<TensorType> infer_state(const ir::NodeView& n) {
  need_same(n, 1, 0);
  need_scalar(n, 2, {DType::boolean}, "the flag");
  return {n.in[0]};
}

std::vector<TensorType> infer_ema_weights(const ir::NodeView& n) {
  base::require(n.in.size() >= 2 && n.in.size() % 2 == 0, "ema_weights takes pairs of average and value");
  need_scalar(n, 0, {DType::i64}, "step");
  need_scalar(n, 1, {DType::boolean}, "skip");
  std::vector<TensorType> out;
  for (size_t i = 2; i < n.in.size(); i += 2) {
    need_same(n, i + 1, i);
    base::require(n.in[i].dtype == n.in[2].dtype, "averages of one node have one type");
    out.push_back(n.in[i]);
  }
  return out;
}

/// (count, value, sums of the levels ...) -> new sums.
std::vector<TensorType> infer_tree(const ir::NodeView& n) {
  need_scalar(n, 0, {DType::i64}, "count");
  for (size_t i = 2; i < n.in.size(); ++i) need_same(n, i, 1);
  return {n.in.begin() + 2, n.in.end()};
}

/// The sums of the levels are cut like the value; partial sums of ranks stay partial sums.
ir::CutRule tree_cut(const ir::NodeView& n) {
  const auto terms = static_cast<uint32_t>((uint64_t{1} << n.in.size()) - 2);
  return broadcast_cut(n, {terms});
}

ir::OpDef tree_accumulate_op() {
  ir::OpSchema schema{
      .name = "tree_accumulate",
      .doc =
          "adds term number `count` to a binary tree of sums (count, x, L_0, L_1, ...), L_i the sum of 2^i "
          "terms: with t the number of trailing ones of count, L_t = L_t-1 + (... + (L_0 + x))",
      .cut = tree_cut,
      .min_in = 3,
      .max_in = ir::kVariadic,
      .max_out = ir::kVariadic,
      .infer = infer_tree,
      .why_no_grad = kNoGrad,
      .updates = [](size_t operands) {
        std::vector<ir::StateUpdate> list;
        for (size_t i = 2; i < operands; ++i) list.push_back({i - 2, i});
        return list;
      }};
  return {std::move(schema), tree_accumulate_cpu_kernels()};
}

std::vector<ir::OpDef> average_ops() {
  ir::OpSchema weights{
      .name = "ema_weights",
      .doc = "e = k e + (1 - k) p for each pair after (step, skip)",
      .why_no_cut = kHeldAlike,
      .min_in = 1,
      .max_in = ir::kVariadic,
      .min_out = 0,
      .max_out = ir::kVariadic,
      .attrs = {{"keep", "float", "k"}, {"ramp", "int", "1: k = min(keep, (1 + step) / (10 + step))"}},
      .infer = infer_ema_weights,
      .why_no_grad = kNoGrad,
      .updates = [](size_t operands) {
        std::vector<ir::StateUpdate> list;
        for (size_t i = 2; i < operands; i += 2) list.push_back({i / 2 - 1, i});
        return list;
      }};
  ir::OpSchema ema{.name = "ema_update",
                   .doc = "state = keep state + (1 - keep) value; third operand: skip if true",
                   .precision = kStatistics,
                   .cut = elementwise_cut(),
                   .min_in = 2,
                   .max_in = 3,
                   .attrs = {{"keep", "float", "share of the old content"}},
                   .infer = infer_state,
                   .why_no_grad = kNoGrad,
                   .updates = [](size_t) {
                     return std::vector<ir::StateUpdate>{{0, 0}};
                   }};
  return {{std::move(ema), ema_update_cpu_kernels()},
          tree_accumulate_op(),
          {std::move(weights), ema_weights_cpu_kernels()}};
}

/// The type of a scalar computed from any number of f32 (or f64) tensors.
std::vector<TensorType> scalar_of_floats(const ir::NodeView& n, DType result) {
  for (const TensorType& t : n.in) {
    base::require(t.dtype == n.in[0].dtype && (t.dtype == DType::f32 || t.dtype == DType::f64),
                  "gradients are all f32 or all f64, found ", name_of(t.dtype));
  }
  return {{result, Shape{}}};
}

std::vector<TensorType> infer_block_squares(const ir::NodeView& n) {
  scalar_of_floats(n, DType::f64);
  const std::vector<int64_t> dims = n.attrs.get_ints("dims"), blocks = n.attrs.get_ints("blocks");
  base::require(dims.size() == n.in.size() && blocks.size() == n.in.size(), "block_squares of ", n.in.size(),
                " operands has ", dims.size(), " dims and ", blocks.size(), " counts of blocks");
  int64_t total = 0;
  for (size_t i = 0; i < n.in.size(); ++i) {
    const tensor::Dims extents = n.in_dims(i);
    const bool fits = extents.empty()
                          ? blocks[i] == 1
                          : dims[i] >= 0 && dims[i] < static_cast<int64_t>(extents.size()) &&
                                blocks[i] >= 1 && extents[static_cast<size_t>(dims[i])] % blocks[i] == 0;
    base::require(fits, "operand ", i, " of shape ", n.in[i].shape.to_string(), " has no ", blocks[i],
                  " equal blocks along dimension ", dims[i]);
    total += blocks[i];
  }
  return {{DType::f64, Shape{total}}};
}

std::vector<TensorType> infer_norm(const ir::NodeView& n) {
  const std::vector<int64_t> parts = n.attrs.get_ints("parts"), counts = n.attrs.get_ints("counts");
  const std::vector<int64_t> operands = n.attrs.get_ints("operands");
  base::require(parts.size() == n.in.size() && counts.size() == operands.size(),
                "norm_of_squares: attributes for other operands");
  std::vector<int64_t> held(n.in.size());
  for (size_t t = 0; t < counts.size(); ++t) {
    base::require(operands[t] >= 0 && operands[t] < static_cast<int64_t>(n.in.size()), "no operand ",
                  operands[t]);
    held[static_cast<size_t>(operands[t])] += counts[t] * parts[static_cast<size_t>(operands[t])];
  }
  for (size_t i = 0; i < n.in.size(); ++i) {
    base::require(n.in[i].dtype == DType::f64 && n.in[i].shape == Shape{held[i]}, "operand ", i, " is ",
                  n.in[i].to_string(), ", its tensors have ", held[i], " blocks");
  }
  if (n.attrs.get_int("root", 1) == 0) return {{DType::f64, Shape{1}}};
  return {{DType::f32, Shape{}}};
}

std::vector<TensorType> infer_clip(const ir::NodeView& n) {
  for (size_t i = 0; i < n.in.size(); ++i) need_scalar(n, i, {DType::f32}, "an operand");
  return {{DType::f32, Shape{}}, {DType::boolean, Shape{}}, {DType::f32, Shape{}}};
}

std::vector<ir::OpDef> norm_ops() {
  ir::OpSchema squares{
      .name = "block_squares",
      .doc = "sums of squares in f64 of the blocks of each operand, blocks side by side",
      .why_no_cut = kOfParts,
      .max_in = ir::kVariadic,
      .attrs = {{"dims", "ints", "of each operand: the dimension that its blocks divide"},
                {"blocks", "ints", "of each operand: how many blocks it has, all of one size"}},
      .infer = infer_block_squares,
      .why_no_grad = kNoGrad};
  ir::OpSchema norm{
      .name = "norm_of_squares",
      .doc =
          "sqrt of the sum of all operands: sums of squares that block_squares made, gathered from `parts` "
          "ranks; each tensor's blocks are added in their order by halves, then the tensors",
      .why_no_cut = kOfParts,
      .max_in = ir::kVariadic,
      .attrs = {{"parts", "ints", "of each operand: ranks it was gathered from"},
                {"counts", "ints", "of each tensor: blocks on one rank"},
                {"operands", "ints", "of each tensor: which operand holds its blocks"},
                {"root", "int", "0: the sum itself, f64 [1]; default 1"}},
      .infer = infer_norm,
      .why_no_grad = kNoGrad};
  ir::OpSchema finite{.name = "all_finite",
                      .doc = "true if no element of any operand is infinite or NaN",
                      .why_no_cut = kOfParts,
                      .max_in = ir::kVariadic,
                      .infer = [](const ir::NodeView& n) { return scalar_of_floats(n, DType::boolean); },
                      .why_no_grad = kNoGrad};
  ir::OpSchema clip{
      .name = "clip_coefficient",
      .doc =
          "(norm, grad_scale?, norm_limit?, loss?, loss_limit?) -> grad_scale min(1, max_norm / (n + eps)), "
          "n = norm grad_scale; whether to skip the update (something is not finite or above its limit); n",
      .why_no_cut = kOfParts,
      .min_in = 1,
      .max_in = 5,
      .max_out = 3,
      .attrs = {{"max_norm", "float", "0: no clipping"},
                {"epsilon", "float", "default 1e-6"},
                {"skip_nonfinite", "int", "default 1"}},
      .infer = infer_clip,
      .why_no_grad = kNoGrad};
  return {{std::move(squares), block_squares_cpu_kernels()},
          {std::move(norm), norm_of_squares_cpu_kernels()},
          {std::move(finite), all_finite_cpu_kernels()},
          {std::move(clip), clip_coefficient_cpu_kernels()}};
}

}  // namespace

bool is_group_update(std::string_view name) { return find_layout(name) != nullptr; }

UpdateLayout update_layout(std::string_view name) {
  if (const NamedLayout* l = find_layout(name)) return l->layout;
  base::fail(base::ErrorCode::internal, "not an update op: ", name);
}

std::vector<ir::OpDef> optimizers_ops() {
  std::vector<ir::OpDef> all;
  for (auto* family : {gradient_descent_ops, adaptive_ops, average_ops, norm_ops}) {
    for (ir::OpDef& op : family()) all.push_back(std::move(op));
  }
  return all;
}

}  // namespace trireme::ops
