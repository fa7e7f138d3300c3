// What tests of many ranks share: local ranks with a mesh, ops and graphs run on each of them.
#pragma once

#include <functional>

#include "backend/cpu/device/cpu_stream.h"
#include "comm/local.h"
#include "comm/mesh.h"
#include "ops/collective/parts.h"
#include "ops/test_eval.h"

namespace trireme::ops::testing {

/// Ranks as threads of this process, in a mesh.
class Ranks {
 public:
  explicit Ranks(tensor::MeshShape shape) : shape_(std::move(shape)), world_(shape_.size()) {}

  /// One rank, valid while its body runs.
  struct Rank {
    comm::Mesh mesh;
    base::ThreadPool pool{1};

    RankGroup group(std::string_view axes) const { return RankGroup::of(attrs(axes)); }
    ir::Attrs attrs(std::string_view axes) const {
      return group_attrs(mesh.shape(), mesh.coordinates(), axes);
    }

    /// One node by its first CPU kernel.
    std::vector<Tensor> eval(std::string_view name, const std::vector<Tensor>& in,
                             const ir::Attrs& attrs = {}, size_t results = 1) {
      const ir::OpDef& op = table().need(name);
      if (!op.schema.is_collective) return evaluate(op, attrs, in, results, pool);
      ir::NodeView node{
          .attrs = attrs, .in = {}, .out = {}, .known = {}, .is_present = {}, .out_count = results};
      node.name = name;
      std::vector<const void*> from;
      for (const Tensor& t : in) {
        node.in.push_back(t.type());
        node.known.push_back(nullptr);
        node.is_present.push_back(true);
        from.push_back(t.raw());
      }
      node.out = ir::infer_types(op.schema, node);
      mesh.open(attrs.get_string("axes", ""));
      base::SharedCache packs;
      const ir::BoundKernel bound = op.kernels.front().prepare({node, packs, 1});
      std::vector<Tensor> out;
      std::vector<void*> to;
      for (const tensor::TensorType& t : node.out) {
        out.push_back(Tensor::empty(t.dtype, t.shape.to_dims()));
        to.push_back(out.back().mutable_raw());
      }
      Tensor workspace = Tensor::empty(tensor::DType::u8, {bound.workspace_bytes});
      cpu::CpuStream stream(pool);
      bound.run({from.data(), to.data(), workspace.mutable_raw(), stream, nullptr, &mesh});
      return out;
    }

    /// Outputs of a sorted graph, node by node.
    std::vector<Tensor> run_graph(const ir::Graph& graph, const std::vector<Tensor>& inputs) {
      std::vector<Tensor> values(graph.values().size());
      for (size_t i = 0; i < values.size(); ++i) values[i] = graph.values()[i].data;
      for (size_t i = 0; i < inputs.size(); ++i) values[index(graph.inputs()[i])] = inputs[i];
      for (const ir::Node& node : graph.nodes()) {
        std::vector<Tensor> operands;
        for (ir::ValueId id : node.in) operands.push_back(id == ir::kNoValue ? Tensor() : values[index(id)]);
        const std::vector<Tensor> made = eval(node.op_name(), operands, node.attrs, node.out.size());
        for (size_t i = 0; i < node.out.size(); ++i) {
          if (node.out[i] != ir::kNoValue) values[index(node.out[i])] = made[i];
        }
      }
      std::vector<Tensor> results;
      for (ir::ValueId id : graph.outputs()) results.push_back(values[index(id)]);
      return results;
    }
  };

  /// Runs `body` on every rank at once. An error of any rank is thrown here.
  void run(const std::function<void(Rank&)>& body) {
    world_.run([&](comm::Communicator& world) {
      Rank rank{comm::Mesh(world, shape_)};
      body(rank);
    });
  }

 private:
  tensor::MeshShape shape_;
  comm::LocalWorld world_;
};

}  // namespace trireme::ops::testing
