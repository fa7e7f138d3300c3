// What `run` and `inspect` share: loading a model, choosing input shapes, making input tensors.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engine/session/session.h"
#include "model/model.h"

namespace trireme::cli {

/// What large weights of a model hold: their numbers, or nothing where only programs are looked at.
enum class Content { all, none };

/// model::load_model, and "zoo:NAME" or "zoo:NAME:option=value,..." for a network with random weights
/// (model/zoo/zoo.h).
model::Model open_model(const std::string& name, Content content = Content::all);

/// Shapes for the graph's inputs: from `given` ("name:1,3,224,224"), else the declared ones with the first
/// symbolic dimension = batch and the others = 1 unless `dims` ("seq=128") names them. Throws
/// invalid_argument for an unknown name.
std::vector<tensor::Dims> input_shapes(const ir::Graph& graph, int64_t batch,
                                       const std::vector<std::string>& given,
                                       const std::vector<std::string>& dims);

/// Rows of the smallest table that elements of an input choose from as they are given, such as the vocabulary
/// of token ids; INT64_MAX: of none.
int64_t rows_read_by(const ir::Graph& graph, ir::ValueId input);

/// Seeded random content: floats standard normal, integers from 0 to 100 and less than `below`, booleans
/// true.
tensor::Tensor random_tensor(tensor::DType dtype, const tensor::Dims& dims, uint64_t seed,
                             int64_t below = INT64_MAX);

/// "name=value" -> pair. Throws invalid_argument without "=".
std::pair<std::string, std::string> split_assignment(const std::string& text);

}  // namespace trireme::cli
