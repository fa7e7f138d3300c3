// Parts of logical tensors: cut out of the whole, and put together again over the ranks.
#pragma once

#include "comm/mesh.h"
#include "engine/train/state_store.h"

namespace trireme::engine {

/// What the rank at `coordinates` holds of `whole`, whose dims are place.dims.
tensor::Tensor part_of(const tensor::Tensor& whole, const StatePlace& place, const tensor::MeshShape& mesh,
                       const std::vector<int>& coordinates);

/// The whole tensor of which every rank holds a part. Collective over the axes that split it, whose group is
/// open; allocates as much again as the tensor needs. Where nothing is split: `part` itself.
tensor::Tensor whole_of(const tensor::Tensor& part, const StatePlace& place, const comm::Mesh& mesh);

/// True if some axis splits it.
bool is_split(const StatePlace& place, const tensor::MeshShape& mesh);

/// `content`, which is f32, in another float type, rounded to nearest even as the cast operator does; or
/// content of another type in f32.
tensor::Tensor converted(const tensor::Tensor& content, tensor::DType type);

}  // namespace trireme::engine
