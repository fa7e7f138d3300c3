// A world of ranks as a grid with named axes, one communicator for each axis or set of axes.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.h"
#include "tensor/mesh.h"

namespace trireme::comm {

using tensor::MeshAxis;
using tensor::MeshShape;

/// One rank's place in the mesh. A rank's index in the group of an axis is its coordinate on it; in the group
/// of several axes ranks are ordered as in the world (row-major). Used by its rank's owner thread only.
class Mesh {
 public:
  /// Collective over `world`, whose size is the product of the extents. Opens the group of every axis.
  Mesh(Communicator& world, MeshShape shape);
  /// The same places with other communicators, on device memory say: `make` turns a group of `host` into one
  /// when it is opened here. Opens none by itself; world() stays the host's. `host` outlives this.
  using Make = std::function<std::unique_ptr<Communicator>(Communicator& group)>;
  Mesh(Mesh& host, Make make);

  const MeshShape& shape() const { return shape_; }
  std::vector<int> coordinates() const;
  Communicator& world() { return world_; }
  /// The ranks that differ from this one on these axes only: "tp", or "dp,tp" in mesh order. Collective over
  /// the world the first time a set is named: all ranks open the same sets in the same order. May allocate.
  Communicator& open(std::string_view axes);
  /// A group that was opened. Throws internal for another; does not allocate.
  Communicator& axis(std::string_view axes) const;

 private:
  Communicator& world_;
  MeshShape shape_;
  Mesh* host_ = nullptr;
  Make make_;
  std::map<std::string, std::unique_ptr<Communicator>, std::less<>> groups_;
};

}  // namespace trireme::comm
