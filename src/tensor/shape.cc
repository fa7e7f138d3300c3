// Shapes with named symbolic dimensions, mesh placements and tensor types: checks and text forms.
#include "tensor/shape.h"

#include <algorithm>

namespace trireme::tensor {

namespace {

/// The rank of a shape may be the extent of an operand, which a file of a few bytes can name.
void check_rank(size_t rank) {
  constexpr size_t kMaxRank = 64;  // NumPy's
  if (rank > kMaxRank) base::fail_invalid("a shape of ", rank, " dimensions; the most are ", kMaxRank);
}

}  // namespace

int64_t element_count(const Dims& dims) {
  constexpr int64_t kLimit = int64_t{1} << 56;  // so that the bits of 64-bit elements still fit an int64_t
  int64_t count = 1;
  bool empty = false;
  for (int64_t d : dims) {
    // require() would build its message, and so allocate, for every tensor.
    if (d < 0) base::fail_invalid("negative dimension in shape ", to_string(dims));
    if (d == 0) empty = true;
    if (d != 0 && count > kLimit / d)
      base::fail_invalid("element count overflows in shape ", to_string(dims));
    if (d != 0) count *= d;
  }
  return empty ? 0 : count;
}

std::string to_string(const Dims& dims) {
  std::string out = "[";
  for (size_t i = 0; i < dims.size(); ++i) out += (i > 0 ? "," : "") + std::to_string(dims[i]);
  return out + "]";
}

Dim Dim::symbol(std::string name) {
  Dim dim(-1);
  dim.name_ = std::move(name);
  return dim;
}

int64_t Dim::value() const {
  base::check(is_static(), "dimension '", name_, "' has no number yet");
  return value_;
}

std::string Dim::to_string() const { return is_static() ? std::to_string(value_) : name_; }

bool Dim::operator==(const Dim& other) const {
  if (is_unknown() || other.is_unknown()) return false;
  return value_ == other.value_ && name_ == other.name_;
}

Shape Shape::of(const Dims& dims) {
  check_rank(dims.size());
  Shape shape;
  shape.dims_.assign(dims.begin(), dims.end());
  return shape;
}

Shape Shape::unknown_rank() {
  Shape shape;
  shape.has_rank_ = false;
  return shape;
}

Shape Shape::unknown(size_t rank) {
  check_rank(rank);
  return Shape(std::vector<Dim>(rank, Dim::unknown()));
}

size_t Shape::rank() const {
  if (!has_rank_) base::fail_unsupported("the rank of this value is not known before it is computed");
  return dims_.size();
}

bool Shape::is_static() const {
  return has_rank_ && std::all_of(dims_.begin(), dims_.end(), [](const Dim& d) { return d.is_static(); });
}

Dims Shape::to_dims() const {
  if (!is_static()) base::fail(base::ErrorCode::internal, "shape ", to_string(), " is not static");
  Dims dims;
  for (const Dim& d : dims_) dims.push_back(d.value());
  return dims;
}

std::optional<int64_t> Shape::elements() const {
  if (!is_static()) return std::nullopt;
  return element_count(to_dims());
}

std::string Shape::to_string() const {
  if (!has_rank_) return "[*]";
  std::string text = "[";
  for (size_t i = 0; i < dims_.size(); ++i) text += (i ? "," : "") + dims_[i].to_string();
  return text + "]";
}

std::string TensorType::to_string() const { return std::string(name_of(dtype)) + shape.to_string(); }

int64_t bytes_of(const TensorType& type) { return bytes_of(type.dtype, element_count(type.shape.to_dims())); }

}  // namespace trireme::tensor
