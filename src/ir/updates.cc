// What a node writes in place: by its schema, and the copies behind that.
#include "ir/updates.h"

namespace trireme::ir {

std::vector<StateUpdate> updates_of(const Node& node) {
  if (!node.op->schema.updates_state()) return {};
  const size_t copies = node.attrs.get_ints(kCopiesAttr).size();
  const size_t operands = node.in.size() - copies, results = node.out.size() - copies;
  std::vector<StateUpdate> list = node.op->schema.updates(operands);
  for (size_t c = 0; c < copies; ++c) list.push_back({results + c, operands + c});
  std::erase_if(list, [&](const StateUpdate& u) { return node.in[u.operand] == kNoValue; });
  return list;
}

}  // namespace trireme::ir
