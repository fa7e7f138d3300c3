// Finds out when each value of a body can be computed, and cuts the body accordingly.
#include "lower/loop_form.h"

#include <algorithm>
#include <set>

#include "lower/graph_part.h"
#include "ops/table.h"
#include "passes/independence/independence.h"
#include "passes/lists/lists.h"

namespace trireme::lower {

using ir::Node;
using ir::NodeId;
using ir::ValueId;
using tensor::Dims;
using tensor::Shape;

namespace {

/// When a value can be computed; later ones last.
enum class LoopTime : uint8_t { known, once, sequence, round };

/// The shape of a value that has one of two shapes.
Shape widened_shape(const Shape& a, const Shape& b) {
  if (!a.has_rank() || !b.has_rank() || a.rank() != b.rank()) return Shape::unknown_rank();
  Shape out = a;
  for (size_t d = 0; d < a.rank(); ++d) {
    if (!(a[d] == b[d])) out[d] = tensor::Dim::unknown();
  }
  return out;
}

/// One row of a value: its extents without the outermost.
Dims row_dims(const tensor::TensorType& type) {
  const Dims dims = type.shape.to_dims();
  return {dims.begin() + 1, dims.end()};
}

/// Finds out when each value of a body can be computed.
class LoopTimes {
 public:
  LoopTimes(const ir::Graph& body, const LoopSignature& signature)
      : body_(body), signature_(signature), counters_(body, signature), time_(body.values().size()) {
    place_inputs();
    for (const Node& node : body_.nodes()) place(node);
  }

  LoopTime time(ValueId id) const {
    return id == ir::kNoValue || body_.known(id) != nullptr ? LoopTime::known : time_[ir::index(id)];
  }
  const LoopCounters& counters() const { return counters_; }
  std::vector<StateRule> states() const;
  std::map<size_t, int64_t> steps() const;
  RoundLimits limits() const;

  /// A row that rounds read: `rows` is none for the operands of a scan.
  struct Slice {
    RoundSlice slice;
    ValueId rows = ir::kNoValue;
    Dims read_as;  ///< the extents in which the body sees it
  };
  const std::vector<Slice>& slices() const { return slices_; }
  /// The number of the slice that a value is.
  std::optional<size_t> slice_of(ValueId id) const {
    const auto at = slice_of_.find(id);
    return at == slice_of_.end() ? std::nullopt : std::optional(at->second);
  }

 private:
  void place_inputs();
  void place(const Node& node);
  bool is_slice(const Node& node);
  void add_slice(ValueId id, Slice slice) {
    slice_of_[id] = slices_.size();
    slices_.push_back(std::move(slice));
  }

  const ir::Graph& body_;
  const LoopSignature& signature_;
  LoopCounters counters_;
  std::vector<LoopTime> time_;  ///< by value
  std::vector<Slice> slices_;
  std::map<ValueId, size_t> slice_of_;
};

void LoopTimes::place_inputs() {
  for (size_t i = 0; i < body_.inputs().size(); ++i) {
    const ValueId id = body_.inputs()[i];
    LoopTime when = i >= signature_.first_capture() ? LoopTime::once : LoopTime::round;
    if (signature_.is_state(i)) {
      if (body_.outputs()[signature_.first_state_result() + i - signature_.first_state()] == id)
        when = LoopTime::once;
    } else if (i >= signature_.first_slice() && i < signature_.first_capture()) {
      when = LoopTime::sequence;
      const Dims dims = body_.type(id).shape.to_dims();
      add_slice(id, {{.rows = {RoundConstant::From::operand, i, {}},
                      .is_scanned = true,
                      .from_last = signature_.from_last[i - signature_.first_slice()],
                      .dims = dims},
                     ir::kNoValue,
                     dims});
    }
    time_[ir::index(id)] = when;
  }
}

void LoopTimes::place(const Node& node) {
  LoopTime when = LoopTime::once;
  for (ValueId id : node.in) when = std::max(when, time(id));
  const ir::OpSchema& op = node.op->schema;
  if (op.is_random || op.is_control || op.is_collective || op.updates_state()) when = LoopTime::round;
  const bool is_static = std::all_of(node.out.begin(), node.out.end(), [&](ValueId id) {
    return id == ir::kNoValue || body_.type(id).shape.is_static();
  });
  if (when == LoopTime::sequence && !is_static) when = LoopTime::round;
  if (when == LoopTime::round && is_slice(node)) when = LoopTime::sequence;
  for (ValueId id : node.out) {
    if (id != ir::kNoValue) time_[ir::index(id)] = when;
  }
}

/// A node that reads the row of a number that counts rounds.
bool LoopTimes::is_slice(const Node& node) {
  if (node.op_name() != "gather" || time(node.in[0]) > LoopTime::once) return false;
  const tensor::TensorType& rows = body_.type(node.in[0]);
  if (!rows.shape.is_static() || rows.shape.rank() == 0 || tensor::bits_of(rows.dtype) < 8) return false;
  if (ir::normal_axis(node.attrs.get_int("axis", 0), rows.shape.rank()) != 0) return false;
  const auto at = counters_.number(node.in[1]);
  if (!at) return false;
  const Dims read_as = body_.type(node.out[0]).shape.to_dims();
  Dims dims = row_dims(rows);
  if (dims.size() == 1) dims = read_as;  // [1, n] has a row for each round, [n] has none
  add_slice(node.out[0], {{.rows = {}, .at = *at, .dims = std::move(dims)}, node.in[0], read_as});
  return true;
}

std::vector<StateRule> LoopTimes::states() const {
  std::vector<StateRule> out(signature_.states);
  for (size_t s = 0; s < out.size(); ++s) {
    const size_t input = signature_.first_state() + s;
    const ValueId result = body_.outputs()[signature_.first_state_result() + s];
    if (const auto step = counters_.step(input)) out[s] = {StateRule::Kind::counted, *step};
    if (result == body_.inputs()[input]) out[s] = {StateRule::Kind::unchanged};
  }
  return out;
}

std::map<size_t, int64_t> LoopTimes::steps() const {
  std::map<size_t, int64_t> out;
  for (size_t i = 0; i < signature_.first_slice(); ++i) {
    if (const auto step = counters_.step(i)) out[i] = *step;
  }
  return out;
}

RoundLimits LoopTimes::limits() const {
  if (signature_.is_scan) return {.limits = {}, .is_all = true};
  std::vector<bool> is_same;
  for (size_t i = 0; i < time_.size(); ++i)
    is_same.push_back(time(ValueId(static_cast<uint32_t>(i))) <= LoopTime::once);
  return ConditionReader(body_, counters_, std::move(is_same)).read(body_.outputs()[0], body_.inputs()[1]);
}

/// Cuts a body by these times.
class LoopSplit {
 public:
  LoopSplit(const ir::Graph& body, const LoopSignature& signature)
      : body_(body), signature_(signature), times_(body, signature), limits_(times_.limits()) {}

  LoopForm run() {
    for (size_t i = 0; i < body_.inputs().size(); ++i) input_of_[body_.inputs()[i]] = i;
    form_.states = times_.states();
    form_.steps = times_.steps();
    for (const LoopTimes::Slice& slice : times_.slices()) form_.slices.push_back(slice.slice);
    form_.is_exact = limits_.is_all;
    form_.has_condition = !limits_.is_all;
    for (const RoundLimit& limit : limits_.limits) ask_for(limit.limit);
    if (form_.is_exact) find_liftable();
    ask_for_results();
    make_before();
    make_lifted();
    make_round();
    fill_sources();
    return std::move(form_);
  }

 private:
  LoopTime time(ValueId id) const { return times_.time(id); }
  ValueId state_result(size_t s) const { return body_.outputs()[signature_.first_state_result() + s]; }

  /// Sequence values of which every row follows from the same row of the slices, and that take a product:
  /// these are computed for many rounds at once.
  void find_liftable() {
    GraphPart part(body_);
    std::set<ValueId> in_part, has_product;
    try {
      const int64_t rows = most_rows();
      for (const ValueId id : all_slices()) {
        const Dims& dims = slice(id).slice.dims;
        if (dims.empty() || dims[0] != rows) continue;  // rows of several rounds would not stand side by side
        add_rows(part, id);
        in_part.insert(id);
      }
      for (const Node& node : body_.nodes()) {
        if (time(node.out[0]) != LoopTime::sequence || times_.slice_of(node.out[0])) continue;
        if (!reads_only(node, in_part)) continue;
        part.add_node(node);
        in_part.insert(node.out.begin(), node.out.end());
        const bool follows =
            std::any_of(node.in.begin(), node.in.end(), [&](ValueId id) { return has_product.contains(id); });
        if (follows || ir::has_products(node.op->schema))
          has_product.insert(node.out.begin(), node.out.end());
      }
      passes::IndexedInputs inputs;
      index_inputs(part, inputs);
      const std::vector<passes::IndexUse> uses = passes::follow_index(part.graph(), inputs);
      for (ValueId id : has_product) {
        if (id != ir::kNoValue && uses[ir::index(part.at(id))].is_along(0)) liftable_.insert(id);
      }
    } catch (const base::Error&) {
      liftable_.clear();  // some node fits only one round's rows
    }
  }

  /// Of all slices, the most rows in a round: those of the batch.
  int64_t most_rows() const {
    int64_t most = 0;
    for (const LoopTimes::Slice& s : times_.slices()) {
      if (!s.slice.dims.empty()) most = std::max(most, s.slice.dims[0]);
    }
    return most;
  }

  /// Whether all sequence values that a node reads are among `given`.
  bool reads_only(const Node& node, const std::set<ValueId>& given) const {
    return std::all_of(node.in.begin(), node.in.end(),
                       [&](ValueId id) { return time(id) != LoopTime::sequence || given.contains(id); });
  }

  /// Gives the part a slice as an input with rows of any number of rounds, in the extents that its readers
  /// expect.
  void add_rows(GraphPart& part, ValueId id) const {
    const Dims& dims = slice(id).slice.dims;
    Shape shape = Shape::of(dims);
    shape[0] = tensor::Dim::symbol("rows");
    const ValueId here = part.add_input(id, {body_.type(id).dtype, shape});
    show_as_read(part, id, here, -1);
  }

  /// Makes the readers of a slice see its row in the extents that they expect; `outermost`: of the row there,
  /// 0: as it is.
  void show_as_read(GraphPart& part, ValueId id, ValueId here, int64_t outermost) const {
    const Dims& dims = slice(id).slice.dims;
    Dims to = slice(id).read_as;
    if (to == dims) return;
    if (outermost != 0) to[to.size() - dims.size()] = outermost;
    const ValueId shape = part.graph().add_constant(
        tensor::Tensor::from<int64_t>({static_cast<int64_t>(to.size())}, std::span<const int64_t>(to)));
    const ir::Attrs attrs = outermost != 0 ? ir::Attrs{} : ir::Attrs{{"allowzero", int64_t{1}}};
    part.put(id, part.graph().add1(ops::table().need("reshape"), {here, shape}, attrs));
  }

  void index_inputs(const GraphPart& part, passes::IndexedInputs& inputs) const {
    for (ValueId id : part.inputs()) {
      const bool is_slice = times_.slice_of(id).has_value();
      inputs.shapes.push_back(is_slice ? slice(id).slice.dims : body_.type(id).shape.to_dims());
      inputs.dims.push_back(is_slice ? std::optional<size_t>(0) : std::nullopt);
    }
  }

  void ask_for_results() {
    if (form_.has_condition) ask_for(body_.outputs()[0]);
    for (size_t s = 0; s < signature_.states; ++s) {
      if (form_.states[s].kind == StateRule::Kind::computed) ask_for(state_result(s));
    }
    for (size_t i = signature_.first_state_result() + signature_.states; i < body_.outputs().size(); ++i)
      ask_for(body_.outputs()[i]);
  }

  /// Notes that the rounds, or what is computed ahead of them, need a value.
  void ask_for(ValueId wanted) {
    std::vector<ValueId> open{wanted};
    while (!open.empty()) {
      const ValueId id = open.back();
      open.pop_back();
      if (id == ir::kNoValue || body_.known(id) != nullptr || !asked_.insert(id).second) continue;
      if (time(id) == LoopTime::once) {
        once_.insert(id);
      } else if (times_.slice_of(id)) {
        open.push_back(slice(id).rows);
      } else if (const auto input = input_of_.find(id); input != input_of_.end()) {
        ask_for_input(input->second, open);
      } else if (liftable_.contains(id)) {
        lifted_.push_back(id);
        ask_for_lifted(id);
      } else {
        const Node& node = *body_.producer(id);
        in_round_.insert(ir::index(body_.value(id).producer));
        open.insert(open.end(), node.in.begin(), node.in.end());
      }
    }
  }

  /// A round that reads a counter as a tensor computes it like any state.
  void ask_for_input(size_t input, std::vector<ValueId>& open) {
    if (!signature_.is_state(input)) return;
    const size_t s = input - signature_.first_state();
    if (form_.states[s].kind != StateRule::Kind::counted) return;
    form_.states[s].kind = StateRule::Kind::computed;
    open.push_back(state_result(s));
  }

  /// Notes the nodes that compute a lifted value, and what they read from outside.
  void ask_for_lifted(ValueId wanted) {
    std::vector<ValueId> open{wanted};
    while (!open.empty()) {
      const ValueId id = open.back();
      open.pop_back();
      if (id == ir::kNoValue || body_.known(id) != nullptr) continue;
      if (time(id) == LoopTime::once) {
        once_.insert(id);
      } else if (times_.slice_of(id)) {
        lifted_slices_.insert(id);
        ask_for(slice(id).rows);
      } else if (in_lifted_.insert(ir::index(body_.value(id).producer)).second) {
        const Node& node = *body_.producer(id);
        open.insert(open.end(), node.in.begin(), node.in.end());
      }
    }
  }

  void make_before() {
    GraphPart part(body_);
    std::set<size_t> nodes;
    std::vector<ValueId> open;
    for (ValueId id : once_) {
      if (body_.producer(id) != nullptr) open.push_back(id);
    }
    while (!open.empty()) {
      const ValueId id = open.back();
      open.pop_back();
      if (id == ir::kNoValue || body_.producer(id) == nullptr) continue;
      if (!nodes.insert(ir::index(body_.value(id).producer)).second) continue;
      const std::vector<ValueId>& in = body_.producer(id)->in;
      open.insert(open.end(), in.begin(), in.end());
    }
    for (size_t n : nodes) part.add_node(body_.nodes()[n]);
    for (ValueId id : once_) {
      if (body_.producer(id) == nullptr) continue;
      before_of_[id] = before_of_.size();
      part.add_output(id, base::concat("once", before_of_.size()));
    }
    for (ValueId id : part.inputs()) form_.before_inputs.push_back(input_of_.at(id));
    form_.before = part.take();
    form_.before.sort();
  }

  RoundInput input_from(ValueId id) const {
    if (const auto number = times_.slice_of(id)) return {RoundInput::Kind::slice, *number};
    if (const auto at = before_of_.find(id); at != before_of_.end())
      return {RoundInput::Kind::before, at->second};
    const auto lifted = std::find(lifted_.begin(), lifted_.end(), id);
    if (lifted != lifted_.end())
      return {RoundInput::Kind::lifted, static_cast<size_t>(lifted - lifted_.begin())};
    const size_t input = input_of_.at(id);
    if (time(id) == LoopTime::once) return {RoundInput::Kind::operand, input};
    if (signature_.is_state(input)) return {RoundInput::Kind::state, input};
    return {input == 0 ? RoundInput::Kind::iteration : RoundInput::Kind::condition, input};
  }

  void make_lifted() {
    GraphPart part(body_);
    for (ValueId id : lifted_slices_) add_rows(part, id);
    for (size_t n : in_lifted_) part.add_node(body_.nodes()[n]);
    for (size_t i = 0; i < lifted_.size(); ++i) part.add_output(lifted_[i], base::concat("lifted", i));
    for (ValueId id : part.inputs()) form_.lifted_inputs.push_back(input_from(id));
    form_.lifted = part.take();
    form_.lifted.sort();
  }

  void make_round() {
    GraphPart part(body_);
    for (size_t n : in_round_) {
      for (ValueId id : body_.nodes()[n].in) import_slice(part, id);
      part.add_node(body_.nodes()[n]);
    }
    size_t results = 0;
    const auto give = [&](ValueId id) {
      import_slice(part, id);
      part.add_output(id, base::concat("result", results++));
    };
    if (form_.has_condition) give(body_.outputs()[0]);
    for (size_t s = 0; s < signature_.states; ++s) {
      if (form_.states[s].kind == StateRule::Kind::computed) give(state_result(s));
    }
    for (size_t i = signature_.first_state_result() + signature_.states; i < body_.outputs().size(); ++i)
      give(body_.outputs()[i]);
    for (ValueId id : part.inputs()) form_.round_inputs.push_back(input_from(id));
    form_.round = part.take();
    form_.round.sort();
  }

  /// Makes a slice an input of the round in the extents of a row, shown in those that its readers expect.
  void import_slice(GraphPart& part, ValueId id) const {
    if (id == ir::kNoValue || !times_.slice_of(id) || part.has(id)) return;
    const ValueId here = part.add_input(id, {body_.type(id).dtype, Shape::of(slice(id).slice.dims)});
    show_as_read(part, id, here, 0);
  }

  RoundConstant constant_from(ValueId id) const {
    if (const tensor::Tensor* known = body_.known(id)) return {RoundConstant::From::known, 0, *known};
    if (const auto at = before_of_.find(id); at != before_of_.end())
      return {RoundConstant::From::before, at->second, {}};
    return {RoundConstant::From::operand, input_of_.at(id), {}};
  }

  void fill_sources() {
    for (const RoundLimit& limit : limits_.limits)
      form_.bounds.push_back({limit.number, constant_from(limit.limit), limit.or_equal});
    for (const ValueId id : all_slices()) {
      const bool is_read = asked_.contains(id) || lifted_slices_.contains(id);
      if (is_read && slice(id).rows != ir::kNoValue)
        form_.slices[*times_.slice_of(id)].rows = constant_from(slice(id).rows);
    }
  }

  const LoopTimes::Slice& slice(ValueId id) const { return times_.slices()[*times_.slice_of(id)]; }
  std::vector<ValueId> all_slices() const {
    std::vector<ValueId> ids;
    for (size_t i = 0; i < body_.values().size(); ++i) {
      const auto id = ValueId(static_cast<uint32_t>(i));
      if (times_.slice_of(id)) ids.push_back(id);
    }
    return ids;
  }

  const ir::Graph& body_;
  const LoopSignature& signature_;
  LoopTimes times_;
  RoundLimits limits_;
  LoopForm form_;
  std::map<ValueId, size_t> input_of_, before_of_;
  std::set<ValueId> liftable_, asked_, once_, lifted_slices_;
  std::vector<ValueId> lifted_;
  std::set<size_t> in_round_, in_lifted_;  ///< nodes, in their order
};

/// The row of a part x[n:n + 1] along the outermost axis, where n counts rounds.
std::optional<RoundNumber> counted_part(const ir::Graph& body, const LoopCounters& counters,
                                        const Node& node) {
  const auto is_only = [&](size_t i, int64_t value) {
    const tensor::Tensor* known = body.known(node.in[i]);
    return known != nullptr && known->elements() == 1 && known->to_ints()[0] == value;
  };
  if (node.op_name() != "slice" || node.in.size() < 4 || !is_only(3, 0)) return std::nullopt;
  if (node.in.size() > 4 && node.in[4] != ir::kNoValue && !is_only(4, 1)) return std::nullopt;
  const auto from = counters.number(node.in[1]), to = counters.number(node.in[2]);
  const bool is_one = from && to && from->counter == to->counter && to->offset == from->offset + 1;
  return is_one ? from : std::nullopt;
}

/// Makes such parts gather their row, whose extents follow from types. Returns whether there are any.
bool gather_parts(ir::Graph& body, const LoopSignature& signature) {
  const LoopCounters counters(body, signature);
  bool found = false;
  const size_t count = body.nodes().size();
  for (size_t n = 0; n < count; ++n) {
    const Node node = body.nodes()[n];
    if (!counted_part(body, counters, node)) continue;
    const ValueId one = body.add_constant(tensor::Tensor::from<int64_t>({1}, {1}));
    const ValueId at = body.add1(ops::table().need("reshape"), {node.in[1], one});
    const ValueId row =
        body.add1(ops::table().need("gather"), {node.in[0], at}, {{"axis", int64_t{0}}}, node.from);
    body.erase(NodeId(static_cast<uint32_t>(n)));
    body.replace_uses(node.out[0], row);
    found = true;
  }
  if (found) body.sort();
  return found;
}

}  // namespace

ir::Graph bind_every_round(const ir::Graph& body, const LoopSignature& signature,
                           const std::vector<Dims>& shapes) {
  std::vector<Shape> every;
  for (const Dims& dims : shapes) every.push_back(Shape::of(dims));
  for (;;) {
    ir::Graph bound = passes::bind_open_shapes(body, every);
    bool is_wider = false;
    for (size_t s = 0; s < signature.states; ++s) {
      Shape& before = every[signature.first_state() + s];
      const Shape& after = bound.type(bound.outputs()[signature.first_state_result() + s]).shape;
      if (before == after || !before.has_rank()) continue;
      const Shape both = widened_shape(before, after);
      const auto open = [](const Shape& shape) {
        return std::count_if(shape.dims().begin(), shape.dims().end(),
                             [](const tensor::Dim& d) { return !d.is_static(); });
      };
      if (both.has_rank() && open(both) == open(before)) continue;
      before = both;
      is_wider = true;
    }
    if (!is_wider) return bound;
  }
}

LoopForm form_loop(const ir::Graph& body, const LoopSignature& signature, const std::vector<Dims>& shapes,
                   LoopRows rows) {
  ir::Graph bound = bind_every_round(body, signature, shapes);
  if (rows == LoopRows::exist && gather_parts(bound, signature)) {
    const ir::Graph gathered = bind_every_round(bound, signature, shapes);
    LoopForm form = LoopSplit(gathered, signature).run();
    form.needs_rows = true;
    // Without a number of rounds it is not known beforehand whether the rows exist.
    return form.is_exact ? form : form_loop(body, signature, shapes, LoopRows::may_be_missing);
  }
  return LoopSplit(bound, signature).run();
}

}  // namespace trireme::lower
