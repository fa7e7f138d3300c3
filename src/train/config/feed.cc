// Assigns fields of a data set to inputs of a graph, and converts types that differ.
#include "train/config/feed.h"

#include <algorithm>
#include <set>
#include <span>

#include "base/error.h"

namespace trireme::train {
namespace {

using data::Field;
using tensor::Dims;
using tensor::Tensor;

bool contains(const std::vector<std::string>& list, const std::string& name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

std::string names_of(const std::vector<Field>& fields) {
  std::string text;
  for (const Field& f : fields) {
    text += (text.empty() ? "" : ", ") + f.name + " " + std::string(tensor::name_of(f.dtype)) +
            f.shape.to_string() + (f.is_target ? " (target)" : "");
  }
  return text;
}

/// The only field of the wanted kind that no input uses yet; null if there are none or several.
const Field* only_unused(const std::vector<Field>& fields, const std::set<std::string>& used, bool target) {
  const Field* found = nullptr;
  for (const Field& f : fields) {
    if (f.kind != data::FieldKind::tensor || f.is_target != target || used.contains(f.name)) continue;
    if (found != nullptr) return nullptr;
    found = &f;
  }
  return found;
}

const Field* by_name(const std::vector<Field>& fields, const std::string& name) {
  const auto found =
      std::find_if(fields.begin(), fields.end(), [&](const Field& f) { return f.name == name; });
  return found == fields.end() ? nullptr : &*found;
}

/// If a field has one dimension more than a row of the input, each sample holds several rows, such as
/// sentence pairs for a sentence encoder. Returns how many.
int64_t rows_per_sample(const ir::Value& input, const Field& field) {
  const tensor::Shape& want = input.type.shape;
  const bool is_stacked = want.has_rank() && want.rank() >= 2 && field.shape.has_rank() &&
                          field.shape.rank() == want.rank() && field.shape[0].is_static();
  if (!is_stacked) return 1;
  const auto is_open = [](const tensor::Dim& d) { return !d.is_static(); };
  const bool is_free = std::any_of(want.dims().begin() + 1, want.dims().end(), is_open);
  return is_free ? field.shape[0].value() : 1;
}

/// Extents of one row: the input's if all are known and hold as many elements, else those of the field.
Dims row_dims(const ir::Value& input, const Field& field) {
  base::require(field.shape.is_static(), "field '", field.name,
                "' has samples of different shapes: ", field.shape.to_string(), "; resize or crop them");
  Dims have = field.shape.to_dims();
  if (rows_per_sample(input, field) > 1) have.erase(have.begin());
  if (!input.type.shape.has_rank() || input.type.shape.rank() == 0) return have;
  Dims want;
  for (size_t d = 1; d < input.type.shape.rank(); ++d) {
    const tensor::Dim& dim = input.type.shape.dims()[d];
    if (!dim.is_static()) return have;
    want.push_back(dim.value());
  }
  base::require(tensor::element_count(want) == tensor::element_count(have), "input '", input.name,
                "' wants rows of ", tensor::to_string(want), ", field '", field.name, "' has ",
                tensor::to_string(have));
  return want;
}

template <class To>
Tensor copied_as(std::span<const int64_t> from, const Dims& dims) {
  Tensor out = Tensor::empty(tensor::dtype_of<To>(), dims);
  std::transform(from.begin(), from.end(), out.mutable_data<To>().begin(),
                 [](int64_t value) { return static_cast<To>(value); });
  return out;
}

/// Batches hold f32 and i64, but graphs may need integers as i32, as floats or as truth values.
void require_convertible(tensor::DType from, tensor::DType to, const std::string& input) {
  using tensor::DType;
  const bool is_made = from == DType::i64 && (to == DType::i32 || to == DType::f32 || to == DType::boolean);
  base::require(is_made || from == to, "input '", input, "' wants ", tensor::name_of(to),
                ", its field holds ", tensor::name_of(from));
}

Tensor converted(const Tensor& t, tensor::DType dtype, const std::string& input) {
  if (t.dtype() == dtype) return t;
  require_convertible(t.dtype(), dtype, input);
  if (dtype == tensor::DType::i32) return copied_as<int32_t>(t.data<int64_t>(), t.dims());
  if (dtype == tensor::DType::f32) return copied_as<float>(t.data<int64_t>(), t.dims());
  return copied_as<bool>(t.data<int64_t>(), t.dims());
}

}  // namespace

Feeder::Feeder(const ir::Graph& graph, const std::vector<Field>& fields, const FeedRules& rules,
               const std::vector<std::string>& target_inputs) {
  std::set<std::string> used, ruled;
  std::vector<const Field*> chosen;
  for (const ir::ValueId id : graph.inputs()) {
    const std::string& input = graph.value(id).name;
    const auto rule =
        std::find_if(rules.begin(), rules.end(), [&](const auto& r) { return r.first == input; });
    chosen.push_back(by_name(fields, rule != rules.end() ? rule->second : input));
    if (rule != rules.end()) {
      ruled.insert(input);
      base::require(chosen.back() != nullptr, "no field '", rule->second, "'; there are: ", names_of(fields));
    }
    if (chosen.back() != nullptr) used.insert(chosen.back()->name);
  }
  for (const auto& [input, field] : rules) {
    base::require(ruled.contains(input), "the loss graph has no input '", input, "'");
  }
  for (size_t i = 0; i < chosen.size(); ++i) {
    const ir::Value& input = graph.value(graph.inputs()[i]);
    const bool target = contains(target_inputs, input.name);
    if (chosen[i] == nullptr) chosen[i] = only_unused(fields, used, target);
    base::require(chosen[i] != nullptr, "no field of the data feeds input '", input.name,
                  "'; the fields are: ", names_of(fields), "; say feed: {", input.name, ": FIELD}",
                  target ? ", or name the target in data.label_field" : "");
    used.insert(chosen[i]->name);
    // Fields of other types are changed on their way into a batch.
    const bool is_kept = chosen[i]->dtype == tensor::DType::f32 || chosen[i]->dtype == tensor::DType::i64;
    if (is_kept) require_convertible(chosen[i]->dtype, input.type.dtype, input.name);
    links_.push_back({input.name, chosen[i]->name, input.type.dtype, row_dims(input, *chosen[i]), target,
                      rows_per_sample(input, *chosen[i])});
    const tensor::Shape& shape = input.type.shape;
    const int64_t rows = std::max<int64_t>(links_.back().rows, 1);
    if (shape.has_rank() && shape.rank() > 0 && shape[0].is_static())
      fixed_samples_ = std::max(fixed_samples_, shape[0].value() / rows);
  }
}

std::vector<Tensor> Feeder::feeds(const data::Batch& batch) const {
  std::vector<Tensor> feeds;
  for (const Link& link : links_) {
    const Tensor& field = batch.tensor(link.field);
    Dims dims{field.dims().at(0) * link.rows};
    dims.insert(dims.end(), link.sample.begin(), link.sample.end());
    feeds.push_back(converted(field, link.dtype, link.input).reshaped(dims));
  }
  return feeds;
}

std::vector<Tensor> Feeder::feeds(const data::Batch& batch, int64_t samples) const {
  std::vector<Tensor> all = feeds(batch);
  for (size_t i = 0; i < all.size(); ++i) all[i] = all[i].rows(0, samples * links_[i].rows);
  return all;
}

std::vector<Dims> Feeder::shapes(int64_t rows) const {
  std::vector<Dims> shapes;
  for (const Link& link : links_) {
    shapes.push_back({rows * link.rows});
    shapes.back().insert(shapes.back().end(), link.sample.begin(), link.sample.end());
  }
  return shapes;
}

std::vector<std::string> Feeder::fields() const {
  std::vector<std::string> names;
  for (const Link& link : links_) {
    if (!contains(names, link.field)) names.push_back(link.field);
  }
  return names;
}

int64_t Feeder::count_targets(const data::Batch& batch, int64_t ignore_index) const {
  for (const Link& link : links_) {
    const Tensor& target = batch.tensor(link.field);
    if (!link.is_integer_target() || target.dtype() != tensor::DType::i64) continue;
    const auto values = target.data<int64_t>();
    return static_cast<int64_t>(values.size()) - std::count(values.begin(), values.end(), ignore_index);
  }
  return batch.valid_rows * targets_per_sample();
}

bool Feeder::has_integer_targets() const {
  return std::any_of(links_.begin(), links_.end(), [](const Link& l) { return l.is_integer_target(); });
}

int64_t Feeder::targets_per_sample() const {
  for (const Link& link : links_) {
    if (link.is_target) return link.rows * tensor::element_count(link.sample);
  }
  return 1;
}

std::string Feeder::text() const {
  std::string text;
  for (const Link& link : links_) {
    text += base::concat(link.input, " <- ", link.field, " ", tensor::to_string(link.sample), " ",
                         tensor::name_of(link.dtype), link.is_target ? " (target)\n" : "\n");
  }
  return text;
}

}  // namespace trireme::train
