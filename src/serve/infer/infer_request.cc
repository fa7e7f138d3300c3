// Checks that apply to every request, for any protocol and model.
#include "serve/infer/infer_request.h"

#include <algorithm>
#include <string_view>

#include "base/error.h"

namespace trireme::serve {
namespace {

void check_unique(std::vector<std::string_view> names, const char* kind) {
  std::sort(names.begin(), names.end());
  base::require(names.empty() || !names.front().empty(), "Unable to parse 'name': an ", kind, " has no name");
  const auto twice = std::adjacent_find(names.begin(), names.end());
  base::require(twice == names.end(), kind, " '", twice == names.end() ? "" : *twice,
                "' already exists in request");
}

}  // namespace

void check_tensor_room(size_t tensors) {
  base::require(tensors < kMaxRequestTensors, "request has more inputs or outputs than the limit of ",
                kMaxRequestTensors);
}

void check_dim_room(size_t dims) {
  base::require(dims < kMaxRequestDims, "Unable to parse 'shape': more dimensions than the limit of ",
                kMaxRequestDims);
}

void check_request_names(const InferRequest& request) {
  std::vector<std::string_view> names;
  for (const WireTensor& t : request.inputs) names.push_back(t.name);
  check_unique(std::move(names), "input");
  names.clear();
  for (const OutputWish& wish : request.outputs) names.push_back(wish.name);
  check_unique(std::move(names), "output");
}

}  // namespace trireme::serve
