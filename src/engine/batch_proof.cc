// Whether a model may be batched without being told: a proof over its graph.
#include "engine/batch_proof.h"

#include <algorithm>

#include "engine/batch_rows.h"
#include "passes/pass.h"

namespace trireme::engine {
namespace {

constexpr int64_t kRows = 3;  // unlike 1 and 2, seldom the extent of another dimension by chance

bool has_open_first_dimension(const tensor::Shape& shape) {
  return shape.has_rank() && shape.rank() > 0 && !shape[0].is_static();
}

/// Shapes with kRows rows and every other open dimension = `extent`.
std::vector<tensor::Dims> shapes_of(const ir::Graph& graph, int64_t extent) {
  std::vector<tensor::Dims> shapes;
  for (ir::ValueId id : graph.inputs()) {
    tensor::Dims dims;
    for (const tensor::Dim& d : graph.type(id).shape.dims())
      dims.push_back(d.is_static() ? d.value() : extent);
    dims[0] = kRows;
    shapes.push_back(std::move(dims));
  }
  return shapes;
}

}  // namespace

bool batches_by_rows(const ir::Graph& graph) {
  const bool all_open = !graph.inputs().empty() &&
                        std::all_of(graph.inputs().begin(), graph.inputs().end(), [&](ir::ValueId id) {
                          return has_open_first_dimension(graph.type(id).shape);
                        });
  if (!all_open) return false;
  // Open inner dimensions (an image's height, a length) must have some extent; not every model takes every
  // one.
  for (const int64_t extent : {16, 64, 224, 256}) {
    try {
      return rows_are_independent(passes::bind_shapes(graph, shapes_of(graph, extent)), kRows);
    } catch (const base::Error&) {
      continue;
    }
  }
  return false;
}

}  // namespace trireme::engine
