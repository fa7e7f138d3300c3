// Exchanges information about a run between ranks, with a few small collectives.
#include "train/ranks/ranks.h"

#include <algorithm>

#include "base/error.h"

namespace trireme::train {
namespace {

constexpr std::string_view kSource = "train";

template <class T>
comm::Bytes bytes_of(std::span<T> items) {
  return std::as_writable_bytes(items);
}

}  // namespace

int Ranks::data_rank() const {
  if (mesh_ == nullptr || !mesh_->shape().has("dp")) return 0;
  return mesh_->coordinates()[mesh_->shape().index_of("dp")];
}

void Ranks::data_sum(std::span<int64_t> values) const {
  if (data_ranks() == 1) return;
  mesh_->axis("dp").all_reduce(bytes_of(values), {.dtype = tensor::DType::i64, .op = comm::ReduceOp::sum},
                               kSource);
}

void Ranks::max(std::span<double> values) const {
  if (size() == 1) return;
  mesh_->world().all_reduce(bytes_of(values), {.dtype = tensor::DType::f64, .op = comm::ReduceOp::max},
                            kSource);
}

std::string Ranks::from_leader(const std::string& text) const {
  if (size() == 1) return text;
  auto bytes = static_cast<int64_t>(text.size());
  mesh_->world().broadcast(bytes_of(std::span(&bytes, 1)), 0, kSource);
  std::string received = is_leader() ? text : std::string(static_cast<size_t>(bytes), '\0');
  if (bytes > 0) mesh_->world().broadcast(bytes_of(std::span(received)), 0, kSource);
  return received;
}

std::vector<double> Ranks::gather(std::span<const double> values) const {
  std::vector<double> all(values.size() * static_cast<size_t>(size()));
  if (size() == 1 || values.empty()) {
    all.assign(values.begin(), values.end());
    return all;
  }
  mesh_->world().all_gather(std::as_bytes(values), bytes_of(std::span(all)), kSource);
  return all;
}

std::vector<std::string> Ranks::gather(const std::string& text) const {
  if (size() == 1) return {text};
  const auto mine = static_cast<double>(text.size());
  const std::vector<double> sizes = gather(std::span(&mine, 1));
  const auto longest = static_cast<size_t>(*std::max_element(sizes.begin(), sizes.end()));
  if (longest == 0) return std::vector<std::string>(sizes.size());
  std::string padded = text, all(longest * sizes.size(), '\0');
  padded.resize(longest);
  mesh_->world().all_gather(std::as_bytes(std::span(padded)), bytes_of(std::span(all)), kSource);
  std::vector<std::string> texts;
  for (size_t r = 0; r < sizes.size(); ++r) {
    texts.push_back(all.substr(r * longest, static_cast<size_t>(sizes[r])));
  }
  return texts;
}

void Ranks::meet() const {
  if (size() > 1) mesh_->world().barrier(kSource);
}

std::string Ranks::first_problem(const std::string& problem) const {
  if (size() == 1) return problem;
  double has = problem.empty() ? 0 : 1;
  max(std::span(&has, 1));
  if (has == 0) return {};
  const std::vector<std::string> all = gather(problem);
  const auto first = std::find_if(all.begin(), all.end(), [](const std::string& p) { return !p.empty(); });
  return base::concat("rank ", first - all.begin(), ": ", *first);
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

}  // namespace trireme::train
