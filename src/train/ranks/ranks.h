// This rank among the ranks of a run: who leads, who reads which samples, and what all must know.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/mesh.h"

namespace trireme::train {

/// Every rank makes the same calls in the same order. Without a mesh this rank is the only one, and every
/// call answers at once. Used by the rank's owner thread only.
class Ranks {
 public:
  Ranks() = default;
  /// `mesh` outlives this; null: no mesh.
  explicit Ranks(comm::Mesh* mesh) : mesh_(mesh) {}

  comm::Mesh* mesh() const { return mesh_; }
  int rank() const { return mesh_ == nullptr ? 0 : mesh_->world().rank(); }
  int size() const { return mesh_ == nullptr ? 1 : mesh_->world().size(); }
  /// The rank that writes and speaks for all.
  bool is_leader() const { return rank() == 0; }
  /// Data-parallel ranks read different samples; ranks that differ on other axes only read the same ones.
  int data_rank() const;
  int data_ranks() const { return mesh_ == nullptr ? 1 : mesh_->shape().extent("dp"); }

  /// Sums over the data-parallel ranks, in place.
  void data_sum(std::span<int64_t> values) const;
  /// Maximum over all ranks of every element; NaN where one has NaN.
  void max(std::span<double> values) const;
  /// The leader's text on every rank.
  std::string from_leader(const std::string& text) const;
  /// Every rank's text, in order of ranks.
  std::vector<std::string> gather(const std::string& text) const;
  /// Every rank's numbers, as many on each, in order of ranks.
  std::vector<double> gather(std::span<const double> values) const;
  /// Returns when every rank is here.
  void meet() const;
  /// What went wrong on the first rank where something did ("rank 2: …"); empty if nothing did. `problem` is
  /// this rank's.
  std::string first_problem(const std::string& problem) const;

 private:
  comm::Mesh* mesh_ = nullptr;
};

/// The lines of a text, each of which ends with a newline.
std::vector<std::string> lines_of(const std::string& text);

}  // namespace trireme::train
