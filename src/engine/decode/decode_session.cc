// Decodes sequences with a language model: fills pages and the operands of each step.
#include "engine/decode/decode_session.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "runtime/open_device.h"

namespace trireme::engine {
namespace {

using passes::DecodeResult;
using tensor::DType;
using tensor::Tensor;

/// Fills in a step's tokens, their positions and pages, and the rows whose logits are wanted.
void fill_tokens(std::span<const DecodePiece> pieces, const Sequences& sequences, int64_t page_tokens,
                 const DecodeBucket& bucket, std::vector<Tensor>& inputs) {
  auto* ids = inputs[passes::kDecodeIds].mutable_data<int64_t>().data();
  auto* positions = inputs[passes::kDecodePositions].mutable_data<int64_t>().data();
  auto* from = inputs[passes::kDrawFrom].mutable_data<int32_t>().data();
  auto* slots = inputs[passes::kDecodeSlots].mutable_data<int32_t>().data();
  auto* table = inputs[passes::kDecodeTable].mutable_data<int32_t>().data();
  auto* lengths = inputs[passes::kDecodeLengths].mutable_data<int32_t>().data();
  auto* starts = inputs[passes::kDecodeStarts].mutable_data<int32_t>().data();
  auto* last = inputs[passes::kDecodeLast].mutable_data<int64_t>().data();
  auto* adapters = inputs[passes::kDecodeAdapters].mutable_data<int32_t>().data();
  const int64_t most_pages = inputs[passes::kDecodeTable].dims()[1];
  int64_t token = 0, row = 0;
  starts[0] = 0;
  for (const DecodePiece& piece : pieces) {
    const Sequences::Sequence& s = sequences.at(piece.sequence);
    int64_t position = s.length;
    for (int64_t i = 0; i < piece.size(); ++i, ++token, ++position) {
      const int32_t page = s.pages[static_cast<size_t>(position / page_tokens)];
      ids[token] = piece.chosen >= 0 ? 0 : piece.tokens[static_cast<size_t>(i)];
      from[token] = piece.chosen;
      positions[token] = position;
      adapters[token] = s.adapter;
      slots[token] = static_cast<int32_t>(page * page_tokens + position % page_tokens);
    }
    std::copy(s.pages.begin(), s.pages.end(), table + row * most_pages);
    lengths[row] = static_cast<int32_t>(position);
    last[row] = token - 1;
    starts[++row] = static_cast<int32_t>(token);
  }
  const auto used = static_cast<int32_t>(token);
  int64_t begin = 0;
  for (const DecodePiece& piece : pieces) {
    // Rows for logits after other tokens than the last one belong to no sequence.
    for (int64_t i = 0; i < piece.more_rows(); ++i) {
      lengths[row] = 0;
      last[row] = begin + i;
      starts[++row] = used;
    }
    begin += piece.size();
  }
  for (; token < bucket.tokens; ++token) {
    ids[token] = positions[token] = 0;
    slots[token] = from[token] = adapters[token] = -1;
  }
  for (; row < bucket.sequences; ++row) {
    lengths[row] = 0;
    last[row] = 0;
    starts[row + 1] = used;
  }
}

}  // namespace

DecodeSession::DecodeSession(std::shared_ptr<const DecodeModel> model, const DecodeOptions& options)
    : model_(std::move(model)), options_(options) {
  const passes::DecodeGraph& form = model_->form();
  base::require(options.max_sequences > 0 && options.max_tokens > 0, "a session of ", options.max_sequences,
                " sequences and ", options.max_tokens, " tokens a step");
  const int64_t most_pages = form.options.most_pages;
  max_length_ = most_pages * form.options.page_tokens;
  if (form.positions > 0) max_length_ = std::min(max_length_, form.positions);
  if (options.max_length > 0) max_length_ = std::min(max_length_, options.max_length);
  ranks_ = std::make_unique<DecodeRanks>(model_, options);
  known_ = std::make_unique<KnownBeginnings>(options_, *ranks_);
  sequences_ = std::make_unique<Sequences>(ranks_->first().pool(), *known_, options, most_pages);
  ahead_ = std::make_unique<CountsAhead>(*ranks_, rounded_size(options.max_sequences));
  const bool is_cpu = runtime::kind_of_device(options.device) == tensor::DeviceKind::cpu;
  depth_ = options.run_ahead && !is_cpu && ranks_->size() == 1 ? 2 : 1;
  const Bucket most = bucket(options.max_tokens, options.max_sequences);
  const auto make = [&](size_t input, DType type, const tensor::Dims& dims) {
    inputs_.resize(std::max(inputs_.size(), input + 1));
    inputs_[input] = Tensor::zeros(type, dims);
  };
  make(passes::kDecodeIds, DType::i64, {most.tokens});
  make(passes::kDecodePositions, DType::i64, {most.tokens});
  make(passes::kDecodeSlots, DType::i32, {most.tokens});
  make(passes::kDecodeTable, DType::i32, {most.sequences, most_pages});
  make(passes::kDecodeLengths, DType::i32, {most.sequences});
  make(passes::kDecodeStarts, DType::i32, {most.sequences + 1});
  make(passes::kDecodeLast, DType::i64, {most.sequences});
  make(passes::kDecodeAdapters, DType::i32, {most.tokens});
  make(passes::kDrawChosen, DType::i64, {most.sequences});  // already on the device
  make(passes::kDrawFrom, DType::i32, {most.tokens});
  make(passes::kDrawSettings, DType::f32, {most.sequences, SamplingOptions::kNumbers});
  make(passes::kDrawCounters, DType::i64, {most.sequences, 2});
  make(passes::kDrawPlaces, DType::i32, {most.sequences});
  make(passes::kDrawAllowed, DType::i32, {most.sequences, (form.vocabulary + 31) / 32});
  make(passes::kDrawBiasIds, DType::i32, {most.sequences, passes::kMostBiases});
  make(passes::kDrawBiases, DType::f32, {most.sequences, passes::kMostBiases});
  make(passes::kDrawWanted, DType::i64, {most.sequences, 1});
  logits_ = Tensor::empty(DType::f32, {most.sequences, form.vocabulary});
}

DecodeSession::~DecodeSession() = default;

SequenceId DecodeSession::open(const TextOrigin& origin) {
  if (origin.adapter != nullptr) ranks_->use_adapter(*origin.adapter);
  return sequences_->open(origin);
}

SequenceId DecodeSession::open(std::span<const int64_t> prompt, const TextOrigin& origin) {
  if (origin.adapter != nullptr) ranks_->use_adapter(*origin.adapter);
  return sequences_->open(prompt, origin);
}

SequenceId DecodeSession::fork(SequenceId from) {
  const SequenceId id =
      sequences_->fork(from, [&](int32_t page, int32_t to) { ranks_->copy_page(page, to); });
  ranks_->copy_seen(from, id);
  return id;
}

std::shared_ptr<const PageBytes> DecodeSession::copy_of_page(SequenceId id, int64_t number) {
  const auto content = std::make_shared<const PageBytes>(ranks_->page_bytes());
  ranks_->read_page(sequences_->at(id).pages.at(static_cast<size_t>(number)), content->bytes());
  return content;
}

DecodeSession::Bucket DecodeSession::bucket(int64_t tokens, int64_t sequences) const {
  return {rounded_size(tokens), rounded_size(sequences)};
}

void DecodeSession::check(std::span<const DecodePiece> pieces) const {
  int64_t tokens = 0, pages = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const DecodePiece& piece = pieces[i];
    const int64_t fresh = piece.size();
    const Sequences::Sequence& s = sequences_->at(piece.sequence);
    if (fresh == 0) base::fail_invalid("a piece of no tokens of sequence ", piece.sequence);
    for (size_t j = 0; j < i; ++j) {
      if (pieces[j].sequence == piece.sequence)
        base::fail_invalid("two pieces of one step are of sequence ", piece.sequence);
    }
    if (s.length + fresh > max_length_) {
      base::fail_invalid("a sequence becomes longer than the model and the session allow; tokens: ",
                         s.length + fresh, ", at most ", max_length_);
    }
    if (piece.chosen >= 0 && (steps_.launched == 0 || static_cast<size_t>(piece.chosen) >=
                                                          steps_.of_slot[(steps_.launched - 1) % 2].rows))
      base::fail_invalid("the step before has no row ", piece.chosen);
    base::check(piece.biases.size() <= static_cast<size_t>(passes::kMostBiases), piece.biases.size(),
                " biases of one sequence");
    base::check(piece.scored.empty() || piece.scored.size() + 1 >= piece.tokens.size(), "a token behind ",
                "each but the last is scored");
    const bool draws_alone = piece.scored.empty() && piece.chosen < 0 && piece.sampling != nullptr;
    base::check(!piece.draws_each || draws_alone,
                "a piece that draws behind each token is scored, or has its ", "token from a step under way");
    const bool counts = piece.draws_each && piece.sampling->has_penalties();
    base::check(!counts || (options_.counts_ahead && piece.seen_behind.size() + 1 == piece.tokens.size()),
                "draws behind guesses that have no counts of their own");
    base::check(piece.allowed_behind.empty() ||
                    (piece.draws_each && !piece.allowed.empty() && piece.tokens.size() > 1 &&
                     piece.allowed_behind.size() % (piece.tokens.size() - 1) == 0),
                "masks of draws that a piece does not have");
    for (int64_t id : piece.tokens) {
      if (id < 0 || id >= vocabulary())
        base::fail_invalid("token ", id, " is not in the vocabulary of ", vocabulary());
    }
    tokens += fresh;
    pages += pages_for(piece.sequence, fresh);
  }
  if (pieces.empty() || tokens > options_.max_tokens)
    base::fail_invalid("a step takes 1 to ", options_.max_tokens, " tokens, not ", tokens);
  if (pages > pool().free_pages() && pages > free_pages()) {
    base::fail(base::ErrorCode::exhausted, "keys and values of this step need ", pages, " pages, free are ",
               free_pages(), " of ", pool().pages());
  }
}

const compile::Program& DecodeSession::prepare(const Bucket& bucket, DecodeResult result) {
  return ranks_->prepare(result, bucket);
}

namespace {

/// The result of a step covers the wishes of all its pieces.
DecodeResult result_of(std::span<const DecodePiece> pieces) {
  DecodeResult result = DecodeResult::tokens;
  for (const DecodePiece& p : pieces) {
    if (!p.scored.empty()) result = result | DecodeResult::listed;
    if (p.sampling == nullptr) continue;
    if (p.sampling->has_penalties()) result = result | DecodeResult::penalized;
    if (!p.allowed.empty() || !p.biases.empty()) result = result | DecodeResult::edited;
    if (p.lists) result = result | DecodeResult::listed;
  }
  return result;
}

/// A row of a step: the token after which it draws.
struct StepRow {
  const DecodePiece* piece;
  int64_t token;  // within the piece
  bool is_drawn() const {
    return piece->sampling != nullptr && (piece->draws_each || token + 1 == piece->size());
  }
  bool is_behind_guess() const { return piece->draws_each && token > 0; }
  /// The number of the row's draw, which determines its random numbers.
  int64_t position() const { return piece->position + (piece->draws_each ? token : 0); }
  /// The tokens that may follow.
  std::span<const uint64_t> allowed() const {
    if (piece->allowed_behind.empty() || token == 0) return piece->allowed;
    const size_t words = piece->allowed_behind.size() / (piece->tokens.size() - 1);
    return piece->allowed_behind.subspan((static_cast<size_t>(token) - 1) * words, words);
  }
};

/// All rows: the last token of each piece, then the other tokens of pieces with more rows.
std::vector<StepRow> rows_of(std::span<const DecodePiece> pieces) {
  std::vector<StepRow> rows;
  for (const DecodePiece& piece : pieces) rows.push_back({&piece, piece.size() - 1});
  for (const DecodePiece& piece : pieces) {
    for (int64_t token = 0; token < piece.more_rows(); ++token) rows.push_back({&piece, token});
  }
  return rows;
}

/// Writes how each row draws its token; rows that are not wanted take the likeliest token and are not
/// counted. `first_ahead`: the place of the counts of the first row, if it follows a guess.
void fill_draws(std::span<const StepRow> rows, const DecodeBucket& bucket, DecodeResult result,
                int32_t first_ahead, std::vector<Tensor>& inputs) {
  const int64_t sequences = bucket.sequences;
  const bool has_penalties = passes::includes(result, DecodeResult::penalized);
  auto* settings = inputs[passes::kDrawSettings].mutable_data<float>().data();
  auto* counters = inputs[passes::kDrawCounters].mutable_data<int64_t>().data();
  auto* places = inputs[passes::kDrawPlaces].mutable_data<int32_t>().data();
  const SamplingOptions likeliest{.temperature = 0};
  for (size_t row = 0; row < static_cast<size_t>(sequences); ++row) {
    const bool is_drawn = row < rows.size() && rows[row].is_drawn();
    const SamplingOptions& o = is_drawn ? *rows[row].piece->sampling : likeliest;
    settings = o.write(settings, has_penalties);
    counters[2 * row] = o.seed;
    counters[2 * row + 1] = is_drawn ? rows[row].position() : 0;
    const bool is_ahead = is_drawn && rows[row].is_behind_guess();
    const int32_t place = is_ahead   ? first_ahead + static_cast<int32_t>(row)
                          : is_drawn ? rows[row].piece->sequence
                                     : -1;
    places[row] = o.has_penalties() ? place : -1;
  }
}

/// Writes allowed tokens and biases of each row. Rows without either keep their logits bit for bit.
void fill_edits(std::span<const StepRow> rows, int64_t sequences, std::vector<Tensor>& inputs) {
  const auto words = static_cast<size_t>(inputs[passes::kDrawAllowed].dims()[1]);
  auto* allowed = inputs[passes::kDrawAllowed].mutable_data<int32_t>().data();
  auto* ids = inputs[passes::kDrawBiasIds].mutable_data<int32_t>().data();
  auto* biases = inputs[passes::kDrawBiases].mutable_data<float>().data();
  const DecodePiece nothing{};
  for (size_t row = 0; row < static_cast<size_t>(sequences); ++row, allowed += words) {
    const bool is_drawn = row < rows.size() && rows[row].is_drawn();
    const DecodePiece& piece = is_drawn ? *rows[row].piece : nothing;
    const std::span<const uint64_t> may_come = is_drawn ? rows[row].allowed() : piece.allowed;
    const size_t given = std::min(words, 2 * may_come.size());
    // A 64-bit word is two 32-bit words with the lower one first, as this machine is little-endian.
    static_assert(std::endian::native == std::endian::little);
    if (given > 0) std::memcpy(allowed, may_come.data(), given * sizeof(int32_t));
    std::fill(allowed + given, allowed + words, given > 0 ? 0 : -1);
    const size_t at = row * static_cast<size_t>(passes::kMostBiases);
    std::fill_n(ids + at, passes::kMostBiases, -1);
    for (size_t i = 0; i < piece.biases.size(); ++i) {
      ids[at + i] = piece.biases[i].token;
      biases[at + i] = piece.biases[i].bias;
    }
  }
}

/// Writes the token whose probability each row reports; 0 for rows without one.
void fill_wanted(std::span<const DecodePiece> pieces, int64_t sequences, Tensor& input) {
  auto* wanted = input.mutable_data<int64_t>().data();
  std::fill_n(wanted, sequences, 0);
  size_t next = pieces.size();
  for (size_t row = 0; row < pieces.size(); ++row) {
    const DecodePiece& piece = pieces[row];
    for (size_t i = 0; i < piece.scored.size(); ++i) {
      const bool is_last = i + 1 == piece.tokens.size();
      wanted[is_last ? row : next + i] = piece.scored[i];
    }
    next += static_cast<size_t>(piece.more_rows());
  }
}

int64_t tokens_of(std::span<const DecodePiece> pieces) {
  int64_t tokens = 0;
  for (const DecodePiece& piece : pieces) tokens += piece.size();
  return tokens;
}

}  // namespace

std::span<const float> DecodeSession::step(std::span<const DecodePiece> pieces, runtime::Trace* trace) {
  check(pieces);
  for (const DecodePiece& piece : pieces)
    base::check(piece.chosen < 0, "a step to its logits is given its tokens");
  const Bucket size = bucket(tokens_of(pieces), static_cast<int64_t>(pieces.size()));
  prepare(size);
  for (const DecodePiece& piece : pieces) sequences_->take_pages(piece.sequence, piece.size());
  fill_tokens(pieces, *sequences_, options_.page_tokens, size, inputs_);
  ranks_->run(size, inputs_, logits_, trace);
  for (const DecodePiece& piece : pieces) sequences_->grow(piece.sequence, piece.size());
  return logits_.data<float>().first(pieces.size() * static_cast<size_t>(vocabulary()));
}

void DecodeSession::launch(std::span<const DecodePiece> pieces) {
  base::check(steps_.launched - steps_.collected < depth_, "a step is launched before the oldest of ", depth_,
              " is collected");
  check(pieces);
  const DecodeResult result = result_of(pieces);
  const std::vector<StepRow> rows = rows_of(pieces);
  const auto count = static_cast<int64_t>(rows.size());
  base::check(count <= options_.max_sequences, count, " rows of a step of ", options_.max_sequences);
  const Bucket size = bucket(tokens_of(pieces), count);
  prepare(size, result);
  for (const DecodePiece& piece : pieces) sequences_->take_pages(piece.sequence, piece.size());
  fill_tokens(pieces, *sequences_, options_.page_tokens, size, inputs_);
  const auto slot = static_cast<size_t>(steps_.launched % 2);
  fill_draws(rows, size, result, ahead_->place(0, slot), inputs_);
  if (passes::includes(result, DecodeResult::edited)) fill_edits(rows, size.sequences, inputs_);
  const bool lists = passes::includes(result, DecodeResult::listed);
  if (lists) fill_wanted(pieces, size.sequences, inputs_[passes::kDrawWanted]);
  if (passes::includes(result, DecodeResult::penalized)) ahead_->prepare(pieces, slot);
  ranks_->launch(result, size, inputs_, slot);
  steps_.of_slot[slot] = {rows.size(), lists};
  ++steps_.launched;
  for (const DecodePiece& piece : pieces) sequences_->grow(piece.sequence, piece.size());
}

DecodeSession::Drawn DecodeSession::collect() {
  base::check(steps_.collected < steps_.launched, "no step is under way");
  const auto slot = static_cast<size_t>(steps_.collected++ % 2);
  const DecodeRank::Drawn drawn = ranks_->first().collect(slot);
  const auto& [rows, lists] = steps_.of_slot[slot];
  const size_t listed = lists ? static_cast<size_t>(passes::listed_tokens(model_->form())) : 0;
  return {.tokens = {drawn.tokens, rows},
          .log_probabilities = {drawn.log_probabilities, rows},
          .likeliest = {drawn.likeliest, rows * listed},
          .likeliest_logarithms = {drawn.likeliest_logarithms, rows * listed},
          .listed = listed,
          .scored_logarithms = {drawn.wanted_logarithms, lists ? rows : 0}};
}

void DecodeSession::take_seen(SequenceId id, size_t row) {
  ahead_->take(id, row, static_cast<size_t>((steps_.collected - 1) % 2));
}

void DecodeSession::see(SequenceId id, std::span<const int64_t> prompt, std::span<const int64_t> answer) {
  sequences_->at(id);
  std::vector<int32_t> seen(static_cast<size_t>(vocabulary()), 0);  // in the format of count_tokens
  for (int64_t token : prompt) seen.at(static_cast<size_t>(token)) = 1;
  for (int64_t token : answer) seen.at(static_cast<size_t>(token)) += 2;
  ranks_->set_seen(id, std::move(seen));
}

}  // namespace trireme::engine
