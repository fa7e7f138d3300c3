// Compares the collectives that the ranks ask for and writes the text of the error when they differ.
#include "comm/agreement.h"

#include <algorithm>

#include "base/error.h"

namespace trireme::comm {
namespace {

using base::concat;

bool reduces(Collective what) { return what == Collective::all_reduce || what == Collective::reduce_scatter; }

std::string describe(const Asked& a) {
  std::string text = concat(to_string(a.what), " #", a.sequence, ", ", a.in_bytes, " bytes");
  if (reduces(a.what)) {
    text += concat(", ", to_string(a.reduction.op), " of ", name_of(a.reduction.dtype));
  }
  if (a.what == Collective::broadcast) text += concat(", root ", a.root);
  if (a.what == Collective::all_to_all && a.in_place) text += ", in place";
  if (a.uneven) text += ", uneven blocks";
  return text + concat(", layer '", a.source, "'");
}

}  // namespace

Asked asked(const Call& call, int64_t sequence) {
  return {.what = call.what,
          .reduction = call.reduction,
          .in_place = call.in.data() == call.out.data(),
          .uneven = !call.in_sizes.empty(),
          .root = call.to,
          .sequence = sequence,
          .in_bytes = call.in.size(),
          .out_bytes = call.out.size(),
          .source = call.source};
}

void AskedLetter::write(const Asked& question) {
  asked = question;
  source.fill('\0');
  const size_t length = std::min(question.source.size(), source.size() - 1);
  std::copy_n(question.source.data(), length, source.data());
}

Asked AskedLetter::read() const {
  Asked a = asked;
  a.source = source.data();
  return a;
}

bool same(const Asked& a, const Asked& b) {
  if (a.sequence != b.sequence || a.what != b.what || a.root != b.root) return false;
  if (a.uneven != b.uneven) return false;
  if (!a.uneven && (a.in_bytes != b.in_bytes || a.out_bytes != b.out_bytes)) return false;
  // Ranks must agree on working in place in an all_to_all, because there one rank writes another's buffer.
  if (a.what == Collective::all_to_all && !a.uneven && a.in_place != b.in_place && a.in_bytes > 0)
    return false;
  return !reduces(a.what) || (a.reduction.dtype == b.reduction.dtype && a.reduction.op == b.reduction.op);
}

std::string disagreement(int rank_a, const Asked& a, int rank_b, const Asked& b) {
  return concat("ranks disagree on a collective: rank ", rank_a, " asks for ", describe(a), "; rank ", rank_b,
                " for ", describe(b));
}

std::string disagreement(const HalfExchange& sender, const HalfExchange& receiver) {
  return concat("send and recv differ: rank ", sender.rank, " sends ", sender.bytes, " bytes for layer '",
                sender.source, "', rank ", receiver.rank, " expects ", receiver.bytes, " for layer '",
                receiver.source, "'");
}

std::string disagreement(std::span<const SizesOf> ranks) {
  for (size_t from = 0; from < ranks.size(); ++from) {
    for (size_t to = 0; to < ranks.size(); ++to) {
      const int64_t sent = ranks[from].in[to], expected = ranks[to].out[from];
      if (sent == expected) continue;
      return disagreement({ranks[from].rank, static_cast<size_t>(sent), ranks[from].source},
                          {ranks[to].rank, static_cast<size_t>(expected), ranks[to].source});
    }
  }
  return "";
}

size_t block_begin(std::span<const int64_t> sizes, int which) {
  int64_t at = 0;
  for (int i = 0; i < which; ++i) at += sizes[static_cast<size_t>(i)];
  return static_cast<size_t>(at);
}

}  // namespace trireme::comm
