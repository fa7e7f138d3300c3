// Draws under a mask: logits are copied, struck out and given to sample_tokens.
#include "engine/decode/masked_draw.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "base/error.h"
#include "ops/random/sample_tokens.h"
#include "ops/table.h"

namespace trireme::engine {
namespace {

using tensor::DType;
using tensor::Tensor;

/// A sequence of the session, closed at the end.
class OpenSequence {
 public:
  OpenSequence(DecodeSession& session, std::span<const int64_t> prompt)
      : session_(session), id_(session.open(prompt)) {}
  ~OpenSequence() { session_.close(id_); }
  OpenSequence(const OpenSequence&) = delete;
  OpenSequence& operator=(const OpenSequence&) = delete;
  SequenceId id() const { return id_; }

 private:
  DecodeSession& session_;
  SequenceId id_;
};

class MaskedDraw {
 public:
  MaskedDraw(const SamplingOptions& sampling, int64_t vocabulary)
      : logits_(Tensor::empty(DType::f32, {1, vocabulary})),
        settings_(Tensor::empty(DType::f32, {1, ops::kPlainSettings})),
        counter_(Tensor::empty(DType::i64, {1, 2})) {
    sampling.write(settings_.mutable_data<float>().data(), false);
    counter_.mutable_data<int64_t>()[0] = sampling.seed;
  }

  /// Token and logarithm of its probability; nothing if the mask is empty.
  std::optional<std::pair<int64_t, double>> draw(std::span<const float> logits,
                                                 std::span<const uint64_t> mask, int64_t position,
                                                 const ops::HostRun& host) {
    const std::span<float> to = logits_.mutable_data<float>();
    bool any = false;
    for (size_t id = 0; id < logits.size(); ++id) {
      const bool is_allowed = id / 64 < mask.size() && (mask[id / 64] >> id % 64 & 1) != 0;
      any = any || is_allowed;
      to[id] = is_allowed ? logits[id] : -std::numeric_limits<float>::infinity();
    }
    if (!any) return std::nullopt;
    counter_.mutable_data<int64_t>()[1] = position;
    const std::vector<Tensor> out =
        ops::evaluate(ops::table().need("sample_tokens"), {}, {logits_, settings_, counter_}, 2, host);
    return std::pair{out[0].data<int64_t>()[0], double{out[1].data<float>()[0]}};
  }

 private:
  Tensor logits_, settings_, counter_;
};

}  // namespace

FinishReason generate_masked(DecodeSession& session, GenerateRequest request, TokenFilter& filter,
                             const std::function<void(const GenerateEvent&)>& each) {
  Generator(session).limits().check(request);
  if (request.sampling.has_penalties())
    base::fail_unsupported("repetition, presence and frequency penalties in an answer of fixed form");
  const OpenSequence sequence(session, request.prompt);
  MaskedDraw drawing(request.sampling, session.vocabulary());
  std::vector<int64_t> text = request.prompt;
  int64_t generated = 0;
  for (size_t done = static_cast<size_t>(session.length(sequence.id())); generated < request.max_tokens;) {
    const size_t most = static_cast<size_t>(session.options().max_tokens);
    const size_t count = std::min(most, text.size() - done);
    const DecodePiece piece{.sequence = sequence.id(), .tokens = std::span(text).subspan(done, count)};
    const std::span<const float> logits = session.step({&piece, 1});
    done += count;
    if (done < text.size()) continue;
    const auto drawn = drawing.draw(logits, filter.mask(), generated, ops::HostRun(session.threads()));
    if (!drawn)
      base::fail(base::ErrorCode::exhausted, "no token of the vocabulary goes on with the answer after ",
                 generated, " tokens");
    const auto [token, log_probability] = *drawn;
    ++generated;
    GenerateEvent event{.token = token, .log_probability = log_probability};
    const auto& stop = request.stop;
    if (std::find(stop.begin(), stop.end(), token) != stop.end()) {
      event.token = -1;
      event.finish = FinishReason::stop;
    } else {
      filter.accept(token);
      text.push_back(token);
      if (generated == request.max_tokens) event.finish = FinishReason::length;
    }
    each(event);
    if (event.finish == FinishReason::none) continue;
    session.keep(sequence.id(), std::span(text).first(done));
    return event.finish;
  }
  return FinishReason::length;
}

}  // namespace trireme::engine
