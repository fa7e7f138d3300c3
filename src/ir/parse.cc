// Reads the text form of a graph, line by line.
#include <cctype>
#include <charconv>
#include <map>

#include "base/rng.h"
#include "ir/graph.h"

namespace trireme::ir {
namespace {

using tensor::DType;
using tensor::Tensor;
using tensor::TensorType;

/// Walks over one line; every `take` skips blanks first.
class Cursor {
 public:
  explicit Cursor(std::string_view text) : text_(text) {}

  void skip_blanks() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
  }
  bool at_end() {
    skip_blanks();
    return at_ == text_.size();
  }
  bool sees(std::string_view token) {
    skip_blanks();
    return text_.substr(at_, token.size()) == token;
  }
  bool take(std::string_view token) {
    if (!sees(token)) return false;
    at_ += token.size();
    return true;
  }
  void need(std::string_view token) {
    if (!take(token)) base::fail_invalid("expected '", token, "' before '", text_.substr(at_, 20), "'");
  }
  /// The longest run of characters that `accept` likes; may be empty.
  template <class F>
  std::string_view run_of(F&& accept) {
    skip_blanks();
    const size_t start = at_;
    while (at_ < text_.size() && accept(text_[at_])) ++at_;
    return text_.substr(start, at_ - start);
  }
  std::string_view word() {
    const std::string_view w =
        run_of([](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; });
    base::require(!w.empty(), "expected a name before '", text_.substr(at_, 20), "'");
    return w;
  }
  std::string_view number() {
    return run_of([](char c) {
      return std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '+' || c == '.';
    });
  }
  std::string quoted() {
    need("\"");
    std::string out;
    while (at_ < text_.size() && text_[at_] != '"') {
      char c = text_[at_++];
      if (c == '\\' && at_ < text_.size()) c = text_[at_] == 'n' ? '\n' : text_[at_], ++at_;
      out += c;
    }
    base::require(at_ < text_.size(), "a quoted text has no end");
    ++at_;
    return out;
  }
  std::string_view rest() {
    skip_blanks();
    return text_.substr(at_);
  }

 private:
  std::string_view text_;
  size_t at_ = 0;
};

template <class T>
T number_from(std::string_view text) {
  T value{};
  if (!text.empty() && text[0] == '+') text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  base::require(error == std::errc() && end == text.data() + text.size(), "'", text,
                "' is not a number of its kind");
  return value;
}

/// `R`, `S(1)`, `S(1/3)`, `P`, `P(max)`, `O`
tensor::Placement read_placement(Cursor& c) {
  using tensor::Placement;
  if (c.take("S(")) {
    Placement p = Placement::split(number_from<int>(c.number()));
    if (c.take("/")) p.sections = number_from<int>(c.number());
    c.need(")");
    base::require(p.dim >= 0 && p.sections > 0, "no such split: ", p.to_string());
    return p;
  }
  if (c.take("P(max)")) return Placement::partial_max();
  if (c.take("P")) return Placement::partial_sum();
  if (c.take("O")) return Placement::own();
  c.need("R");
  return {};
}

/// `@dp:S(0)@tp:P`
tensor::Shard read_shard(Cursor& c, const tensor::MeshShape& mesh) {
  tensor::Shard shard;
  while (c.take("@")) {
    const size_t axis = mesh.index_of(c.word());
    c.need(":");
    shard.set(axis, read_placement(c));
  }
  return shard;
}

/// `f32[batch,128]`
TensorType read_type(Cursor& c) {
  TensorType type{tensor::dtype_from_name(c.word()), {}};
  c.need("[");
  if (c.take("*]")) {
    type.shape = tensor::Shape::unknown_rank();
  } else {
    std::vector<tensor::Dim> dims;
    while (!c.take("]")) {
      if (!dims.empty()) c.need(",");
      const auto in_dim = [](char ch) { return ch != ',' && ch != ']' && ch != ' '; };
      const std::string_view d = c.run_of(in_dim);
      base::require(!d.empty(), "an extent is missing");
      const bool is_number = std::isdigit(static_cast<unsigned char>(d[0])) != 0;
      dims.push_back(is_number ? tensor::Dim(number_from<int64_t>(d)) : tensor::Dim::symbol(std::string(d)));
    }
    type.shape = tensor::Shape(std::move(dims));
  }
  return type;
}

template <class T>
T element_from(std::string_view text) {
  if constexpr (std::is_same_v<T, double>) {
    return number_from<double>(text);
  } else if constexpr (tensor::dtype_of<T>() <= DType::bf16) {
    return static_cast<T>(number_from<float>(text));
  } else if constexpr (std::is_same_v<T, bool>) {
    return number_from<int>(text) != 0;
  } else {
    return number_from<T>(text);
  }
}

/// Uniform in [-1, 1), reproducible: the content of `#seed=N`.
void fill_random(Tensor& t, uint64_t seed) {
  base::Rng rng(seed);
  tensor::visit_dtype(t.dtype(), [&](auto zero) {
    using T = decltype(zero);
    // Floats in [-1, 1); integers need wider values to differ from zero at all.
    const double reach = tensor::is_float(t.dtype()) ? 1.0 : 100.0;
    for (T& v : t.mutable_data<T>()) {
      const double real = (2 * rng.uniform() - 1) * reach;
      v = static_cast<T>(std::is_unsigned_v<T> && real < 0 ? -real : real);
    }
  });
}

/// `f32[2]{1, 2}`, `f32[64,64]#zeros`, `#ones`, `#seed=7`.
Tensor read_tensor(Cursor& c) {
  const TensorType type = read_type(c);
  base::require(type.shape.is_static(), "a constant of type ", type.to_string(), " has no fixed shape");
  Tensor t = Tensor::zeros(type.dtype, type.shape.to_dims());
  if (c.take("#zeros")) return t;
  if (c.take("#seed=")) {
    fill_random(t, number_from<uint64_t>(c.number()));
    return t;
  }
  const bool ones = c.take("#ones");
  base::require(!c.sees("#"), "the content of this constant was left out when it was printed");
  if (!ones) c.need("{");
  tensor::visit_dtype(type.dtype, [&](auto zero) {
    using T = decltype(zero);
    bool first = true;
    for (T& v : t.mutable_data<T>()) {
      if (!ones && !first) c.need(",");
      first = false;
      v = ones ? element_from<T>("1") : element_from<T>(c.number());
    }
  });
  if (!ones) c.need("}");
  return t;
}

bool is_real(std::string_view number) { return number.find_first_of(".en") != std::string_view::npos; }

AttrValue read_number(Cursor& c) {
  const std::string_view text = c.number();
  if (is_real(text)) return number_from<double>(text);
  return number_from<int64_t>(text);
}

/// A list takes the kind of its elements; an empty one the kind that the op declares, or ints.
AttrValue read_list(Cursor& c, const std::string& declared) {
  if (c.take("]")) {
    if (declared == "floats") return std::vector<double>{};
    if (declared == "strings") return std::vector<std::string>{};
    return std::vector<int64_t>{};
  }
  std::vector<int64_t> ints;
  std::vector<double> reals;
  std::vector<std::string> texts;
  do {
    if (c.sees("\"")) {
      texts.push_back(c.quoted());
      continue;
    }
    const AttrValue v = read_number(c);
    if (const auto* i = std::get_if<int64_t>(&v)) {
      ints.push_back(*i);
    } else {
      reals.push_back(std::get<double>(v));
    }
  } while (c.take(","));
  c.need("]");
  base::require((!ints.empty()) + (!reals.empty()) + (!texts.empty()) == 1, "a list mixes kinds of elements");
  if (!ints.empty()) return ints;
  if (!reals.empty()) return reals;
  return texts;
}

AttrValue read_value(Cursor& c, const std::string& declared) {
  if (c.sees("\"")) return c.quoted();
  if (c.take("[")) return read_list(c, declared);
  base::require(!c.sees("{"), "a subgraph cannot be read from text");
  const std::string_view rest = c.rest();
  const bool is_number =
      !rest.empty() && (std::isdigit(static_cast<unsigned char>(rest[0])) || rest[0] == '-' ||
                        rest.substr(0, 3) == "inf" || rest.substr(0, 3) == "nan");
  if (is_number) return read_number(c);
  return read_tensor(c);
}

Attrs read_attrs(Cursor& c, const OpSchema& op) {
  Attrs attrs;
  if (!c.take("{")) return attrs;
  while (!c.take("}")) {
    if (!attrs.items().empty()) c.need(",");
    const std::string name(c.word());
    c.need("=");
    std::string declared;
    for (const AttrSpec& spec : op.attrs) {
      if (spec.name == name) declared = spec.kind;
    }
    attrs.set(name, read_value(c, declared));
  }
  return attrs;
}

class Parser {
 public:
  explicit Parser(const OpTable& ops) : ops_(ops) {}

  void line(std::string_view text) {
    Cursor c(text);
    if (c.at_end() || c.sees("#")) return;
    base::require(!finished_, "text after the return line");
    if (c.take("graph ")) {
      graph_.name = c.quoted();
    } else if (c.take("mesh ")) {
      read_mesh(c);
    } else if (c.take("return")) {
      read_outputs(c);
    } else {
      read_definition(c);
    }
  }

  Graph finish() {
    base::require(finished_, "the graph has no return line");
    // Results that nobody asked for stand nowhere in the text; sorting drops their values.
    if (has_holes_) graph_.sort();
    return std::move(graph_);
  }

 private:
  /// "%name" or "_" for an absent value.
  std::optional<std::string> read_name(Cursor& c) {
    if (c.take("_")) return std::nullopt;
    c.need("%");
    return std::string(c.word());
  }
  ValueId read_operand(Cursor& c) {
    const std::optional<std::string> name = read_name(c);
    if (!name) return kNoValue;
    const auto at = values_.find(*name);
    base::require(at != values_.end(), "%", *name, " is read before it is defined");
    return at->second;
  }

  void define(const std::string& name, ValueId id) {
    base::require(values_.emplace(name, id).second, "%", name, " is defined twice");
  }

  void read_mesh(Cursor& c) {
    std::vector<tensor::MeshAxis> axes;
    while (!c.at_end()) {
      tensor::MeshAxis axis{std::string(c.word())};
      c.need("=");
      axis.extent = number_from<int>(c.number());
      axes.push_back(std::move(axis));
    }
    graph_.mesh = tensor::MeshShape(std::move(axes));
  }

  void read_definition(Cursor& c) {
    std::vector<std::optional<std::string>> names;
    do names.push_back(read_name(c));
    while (c.take(","));
    c.need("=");
    const std::string_view word = c.word();
    if (word == "input" || word == "param" || word == "state" || word == "const") {
      base::require(names.size() == 1 && names[0], "one name is needed before '", word, "'");
      read_source(c, word, *names[0]);
    } else {
      read_node(c, ops_.need(word), names);
    }
  }

  void read_source(Cursor& c, std::string_view kind, const std::string& id) {
    const std::string name = c.sees("\"") ? c.quoted() : std::string();
    c.need(":");
    if (kind == "input") {
      define(id, graph_.add_input(name, read_type(c)));
    } else if (kind == "state") {
      define(id, graph_.add_state(name, read_type(c)));
    } else if (kind == "param") {
      define(id, graph_.add_param(name, read_tensor(c)));
    } else {
      define(id, graph_.add_constant(read_tensor(c), name));
    }
    graph_.value(values_.at(id)).shard = read_shard(c, graph_.mesh);
    base::require(c.at_end() || c.sees("# "), "unexpected '", c.rest(), "'");
  }

  void read_node(Cursor& c, const OpDef& op, const std::vector<std::optional<std::string>>& names) {
    std::vector<ValueId> in;
    c.need("(");
    while (!c.take(")")) {
      if (!in.empty()) c.need(",");
      in.push_back(read_operand(c));
    }
    Attrs attrs = read_attrs(c, op.schema);
    std::vector<std::optional<TensorType>> types(names.size());
    std::vector<tensor::Shard> shards(names.size());
    if (c.take(":")) {
      for (size_t i = 0; i < names.size(); ++i) {
        if (i > 0) c.need(",");
        if (c.take("_")) continue;
        types[i] = read_type(c);
        shards[i] = read_shard(c, graph_.mesh);
      }
    }
    std::string from;
    if (c.take("#")) from = std::string(c.rest());
    base::require(!from.empty() || c.at_end(), "unexpected '", c.rest(), "'");
    const std::vector<ValueId> out = graph_.add(op, std::move(in), std::move(attrs), names.size(), from);
    for (size_t i = 0; i < names.size(); ++i) {
      if (names[i]) {
        define(*names[i], out[i]);
        if (types[i]) set_type(out[i], *types[i]);
        graph_.value(out[i]).shard = shards[i];
      } else {
        graph_.node(graph_.value(out[i]).producer).out[i] = kNoValue;
        has_holes_ = true;
      }
    }
  }

  /// The text may know more than the inference, but must not contradict it.
  void set_type(ValueId id, const TensorType& type) {
    const TensorType& inferred = graph_.type(id);
    bool fits = inferred.dtype == type.dtype;
    if (fits && inferred.shape.has_rank() && type.shape.has_rank()) {
      fits = inferred.shape.rank() == type.shape.rank();
      for (size_t i = 0; fits && i < type.shape.rank(); ++i) {
        const tensor::Dim &a = inferred.shape[i], &b = type.shape[i];
        fits = !a.is_static() || !b.is_static() || a == b;
      }
    }
    base::require(fits, "the op yields ", inferred.to_string(), ", the text says ", type.to_string());
    graph_.value(id).type = type;
  }

  void read_outputs(Cursor& c) {
    finished_ = true;
    if (c.at_end()) return;
    do {
      const ValueId id = read_operand(c);
      base::require(id != kNoValue, "an output is absent");
      graph_.add_output(id, c.sees("\"") ? c.quoted() : std::string());
    } while (c.take(","));
    base::require(c.at_end(), "unexpected '", c.rest(), "'");
  }

  const OpTable& ops_;
  Graph graph_;
  std::map<std::string, ValueId, std::less<>> values_;
  bool finished_ = false, has_holes_ = false;
};

}  // namespace

Graph parse(std::string_view text, const OpTable& ops) {
  Parser parser(ops);
  size_t number = 1;
  for (size_t start = 0; start < text.size(); ++number) {
    const size_t end = std::min(text.find('\n', start), text.size());
    try {
      parser.line(text.substr(start, end - start));
    } catch (const base::Error& e) {
      throw base::Error(base::ErrorCode::invalid_argument, base::concat("line ", number, ": ", e.message()));
    }
    start = end + 1;
  }
  return parser.finish();
}

}  // namespace trireme::ir
