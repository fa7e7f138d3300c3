// The ranks of one decoding session, of which the caller's is the first: what it does with its pages and
// steps, all do.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "engine/decode/adapter_slots.h"
#include "engine/decode/decode_rank.h"
#include "engine/ranks/rank_group.h"

namespace trireme::engine {

/// One owner thread. Sequences, pages and operands are the caller's; every rank does the same with them. Once
/// a rank is lost so are its keys and values: every later call throws unavailable.
class DecodeRanks {
 public:
  /// Ranks are threads of this process, each with its share of `options.threads` and a device of its own as
  /// runtime::device_of_rank() gives them out; or those of `options.mesh` or of a group of `options.service`,
  /// whose others run follow_decoding(). `options.cache_bytes` and `cache_share` are each rank's: all have as
  /// many pages as the smallest can hold.
  DecodeRanks(std::shared_ptr<const DecodeModel> model, const DecodeOptions& options);
  ~DecodeRanks();
  DecodeRanks(const DecodeRanks&) = delete;
  DecodeRanks& operator=(const DecodeRanks&) = delete;

  int size() const { return model_->strategy().world(); }
  DecodeRank& first();
  const DecodeRank& first() const { return const_cast<DecodeRanks&>(*this).first(); }

  /// Compiles on every rank; the first one's program.
  const compile::Program& prepare(passes::DecodeResult result, const DecodeBucket& bucket);
  /// See DecodeRank. `inputs`: of the largest bucket, in the order of passes::DecodeInput and DrawInput.
  void run(const DecodeBucket& bucket, const std::vector<tensor::Tensor>& inputs, tensor::Tensor& logits,
           runtime::Trace* trace);
  void launch(passes::DecodeResult result, const DecodeBucket& bucket,
              const std::vector<tensor::Tensor>& inputs, size_t slot);
  /// The adapter is in its slot from the next step on, whose last one nobody uses any more: the others need
  /// not have its files.
  void use_adapter(const LoadedAdapter& adapter);
  void copy_page(int32_t from, int32_t to);
  void set_seen(int64_t place, std::vector<int32_t> counts);
  void copy_seen(int64_t from, int64_t to);
  void see_ahead(std::vector<SeenAhead> rows, size_t slot);
  /// A page of all ranks on the host: the parts of one rank behind another's, each with the room of the
  /// largest, for stages differ in their layers.
  int64_t page_bytes() const { return size() * part_bytes_; }
  void read_page(int32_t page, std::span<std::byte> to);
  void write_pages(std::span<const int32_t> pages, std::span<const std::byte* const> from);
  /// Takes a rank away, as if its thread had died; for tests. From any thread.
  void lose(int rank) { group_->lose(rank); }

  /// What another rank does with its part until the first says the end.
  static void follow(DecodeRank& rank, comm::Communicator& world);

 private:
  struct Order;
  /// Tells the others, with the bytes that go with it, and does the same here.
  template <class Do>
  void all(const Order& order, std::span<std::byte> bytes, const Do& act);

  std::shared_ptr<const DecodeModel> model_;
  DecodeOptions options_;
  std::unique_ptr<DecodeRank> alone_;             ///< of one rank
  std::unique_ptr<RankGroup<DecodeRank>> group_;  ///< of several
  std::vector<std::byte> packed_;                 ///< operands on their way
  int64_t part_bytes_ = 0;                        ///< of a page, on the rank that holds most of it
  std::vector<int32_t> adapters_;                 ///< by slot: number of the one that is there; -1: none
};

/// What the other ranks of `options.mesh` do: the steps of the first rank's session until it ends. Throws
/// invalid_argument where they loaded different models.
void follow_decoding(std::shared_ptr<const DecodeModel> model, const DecodeOptions& options);
/// The same over a group that a RankService opened.
void follow_decoding(std::shared_ptr<const DecodeModel> model, DecodeOptions options,
                     comm::Communicator& group);

}  // namespace trireme::engine
