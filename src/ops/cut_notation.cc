// Builds the index notation of cut rules operand by operand.
#include "ops/cut_notation.h"

#include "base/error.h"

namespace trireme::ops {
namespace {

size_t rank_of(const tensor::TensorType& t) { return t.shape.has_rank() ? t.shape.rank() : 0; }

std::string joined(const std::vector<std::string>& parts) {
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) text += (i == 0 ? "" : ",") + parts[i];
  return text;
}

}  // namespace

CutNotation::CutNotation(const ir::NodeView& node) : node_(node) {
  for (size_t i = 0; i < node.in.size(); ++i) in_.push_back(dots(node.present(i) ? rank_of(node.in[i]) : 0));
  for (const tensor::TensorType& t : node.out) out_.push_back(dots(rank_of(t)));
}

CutNotation& CutNotation::in(size_t i, std::string letters) {
  if (!node_.present(i)) return *this;
  base::check(letters.size() == in_[i].size(), "cut notation of an operand of another rank");
  in_[i] = std::move(letters);
  return *this;
}

CutNotation& CutNotation::out(size_t i, std::string letters) {
  if (i >= out_.size() || out_[i].empty()) return *this;
  base::check(letters.size() == out_[i].size(), "cut notation of a result of another rank");
  out_[i] = std::move(letters);
  return *this;
}

CutNotation& CutNotation::broadcast(size_t i, const std::string& letters) {
  if (!node_.present(i)) return *this;
  const tensor::Dims dims = node_.in_dims(i);
  base::check(dims.size() <= letters.size(), "an operand of more dimensions than it broadcasts to");
  std::string own = letters.substr(letters.size() - dims.size());
  for (size_t d = 0; d < dims.size(); ++d) {
    if (dims[d] == 1) own[d] = '.';
  }
  return in(i, std::move(own));
}

std::string CutNotation::text() const { return joined(in_) + "->" + joined(out_); }

void share_count(ir::LocalNode& node, const char* attr, int64_t local, int64_t global) {
  const int64_t count = node.attrs.get_int(attr, 0);
  if (count != 0 && global != 0) node.attrs.set(attr, count * local / global);
}

}  // namespace trireme::ops
