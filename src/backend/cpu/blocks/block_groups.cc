// Products of groups of rows with matrices in blocks; one loop of the team runs the tasks of all groups.
#include "backend/cpu/blocks/block_groups.h"
#include "backend/cpu/device/round_up.h"

#include <algorithm>
#include <new>

namespace trireme::cpu {
namespace {

/// One group: its operands, its loop, and the index of its first task.
struct Part {
  BlockResult result;
  BlockProducts products;
  BlockLoop loop;
  int64_t first_task;

  Part(const BlockGroups& call, const RowGroup& g, void* memory, int64_t first)
      : result{.w = matrix(call, g.matrix),
               .bias = call.bias == nullptr ? nullptr : call.bias + g.matrix * call.n,
               .y = call.y + g.first * call.n},
        products{.results = {&result, 1},
                 .x = call.x + g.first * call.weights.k,
                 .m = g.rows,
                 .rounds = call.rounds},
        loop(products, memory),
        first_task(first) {}

  static PackedBlocks matrix(const BlockGroups& call, int64_t number) {
    PackedBlocks one = call.weights;
    one.data += number * (call.n / kGroupRows) * one.group_bytes();
    one.n = call.n;
    return one;
  }
};

}  // namespace

int64_t block_groups_workspace(const PackedBlocks& weights, int64_t groups, int64_t rows) {
  // The converted rows are four arrays, each of which may need alignment to a cache line.
  constexpr int64_t kArrays = 4 * 64;
  return align64(groups * static_cast<int64_t>(sizeof(Part))) + block_product_workspace(weights, rows) +
         groups * kArrays + 64;
}

void block_groups(const BlockGroups& call, void* workspace, base::ThreadPool& pool) {
  if (call.groups.empty()) return;
  const auto from = reinterpret_cast<uintptr_t>(workspace);
  auto* memory =
      static_cast<std::byte*>(workspace) + (align64(static_cast<int64_t>(from)) - static_cast<int64_t>(from));
  auto* parts = reinterpret_cast<Part*>(memory);
  const auto count = static_cast<int64_t>(call.groups.size());
  memory += align64(count * static_cast<int64_t>(sizeof(Part)));
  int64_t tasks = 0;
  for (int64_t i = 0; i < count; ++i) {
    const RowGroup& g = call.groups[static_cast<size_t>(i)];
    const Part* part = new (parts + i) Part(call, g, memory, tasks);
    memory += block_product_workspace(part->result.w, g.rows);
    tasks += part->loop.tasks();
  }
  pool.run(tasks, [&](int64_t task) {
    Part* part = std::upper_bound(parts, parts + count, task,
                                  [](int64_t t, const Part& p) { return t < p.first_task; }) -
                 1;
    part->loop.run(task - part->first_task);
  });
  for (int64_t i = 0; i < count; ++i) parts[i].~Part();
}

}  // namespace trireme::cpu
