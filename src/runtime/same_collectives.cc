// Ranks compare their programs before they run them: a collective that one of them lacks gives an error with
// names instead of a hanging job.
#include "runtime/same_collectives.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "base/error.h"

namespace trireme::runtime {
namespace {

using compile::Program;
using compile::SlotId;
using compile::Step;

/// The properties of a collective that all ranks of a group must agree on: op, layer, reduction and, if parts
/// are equal, sizes. Attributes that depend on the rank are left out.
std::string text_of(const Program& program, const Step& step) {
  std::string text = base::concat(step.op->schema.name, " of '", step.from, "'");
  if (step.op->schema.name == "all_reduce") {
    for (const SlotId id : step.in) text += base::concat(" ", program.slot(id).bytes);
    text += " bytes";
  }
  return text + base::concat(", ", step.in.size(), " operands");
}

/// FNV-1a.
uint64_t hash_of(const std::string& text) {
  uint64_t hash = 14695981039346656037u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return hash;
}

template <class T>
std::vector<T> gather(comm::Communicator& comm, const std::vector<T>& mine) {
  std::vector<T> all(mine.size() * static_cast<size_t>(comm.size()));
  comm.all_gather(comm::as_bytes(std::span<T>(const_cast<T*>(mine.data()), mine.size())),
                  comm::as_bytes(std::span<T>(all)), "programs of the ranks");
  return all;
}

/// The first position where a rank differs from rank 0, and that rank; nullopt if all are equal.
struct Difference {
  size_t place, rank;
};

std::optional<Difference> first_difference(const std::vector<uint64_t>& hashes, size_t per_rank) {
  for (size_t place = 0; place < per_rank; ++place) {
    for (size_t r = 1; r * per_rank < hashes.size(); ++r) {
      if (hashes[r * per_rank + place] != hashes[place]) return Difference{place, r};
    }
  }
  return std::nullopt;
}

void require_same(comm::Communicator& comm, const std::string& axes, const std::vector<std::string>& texts) {
  const std::vector<int64_t> counts = gather(comm, std::vector{static_cast<int64_t>(texts.size())});
  const auto most = static_cast<size_t>(*std::max_element(counts.begin(), counts.end()));
  std::vector<uint64_t> mine(most, 0);
  for (size_t i = 0; i < texts.size(); ++i) mine[i] = hash_of(texts[i]);
  const std::vector<uint64_t> hashes = gather(comm, mine);
  const std::optional<Difference> at = first_difference(hashes, most);
  if (!at) return;
  constexpr size_t kText = 200;
  std::vector<char> shown(kText, 0);
  const std::string here = at->place < texts.size() ? texts[at->place] : "nothing";
  std::memcpy(shown.data(), here.data(), std::min(here.size(), kText - 1));
  const std::vector<char> all = gather(comm, shown);
  base::fail_invalid("the ranks' programs differ at collective ", at->place, " over ", axes, ": rank 0 has ",
                     all.data(), ", rank ", at->rank, " has ", all.data() + at->rank * kText);
}

}  // namespace

void open_same_collectives(const Program& program, comm::Mesh& mesh) {
  std::vector<std::string> order;
  std::map<std::string, std::vector<std::string>> texts;
  for (const Step& step : program.steps) {
    if (step.axes.empty()) continue;
    if (!texts.contains(step.axes)) order.push_back(step.axes);
    texts[step.axes].push_back(text_of(program, step));
  }
  for (const std::string& axes : order) require_same(mesh.open(axes), axes, texts[axes]);
}

}  // namespace trireme::runtime
