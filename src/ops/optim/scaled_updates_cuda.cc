// Kernels on NVIDIA GPUs of updates that use norms or sums of whole parameters: LAMB, LARS, Adafactor and
// Muon.
#include <algorithm>
#include <map>

#include "backend/cuda/optim/muon.h"
#include "backend/cuda/optim/trust.h"
#include "ops/cuda_kernels.h"
#include "ops/optim/norm_blocks.h"
#include "ops/optim/update_node_cuda.h"

namespace trireme::ops {
namespace {

using tensor::Dims;

cuda::LambForm lamb_form(const ir::Attrs& attrs) {
  const double beta1 = attrs.get_float("beta1", 0.9);
  return {.lr_scale = attrs.get_float("lr_scale", 1),
          .beta1 = beta1,
          .take1 = attrs.get_int("grad_averaging", 1) != 0 ? 1 - beta1 : 1,
          .beta2 = attrs.get_float("beta2", 0.999),
          .epsilon = attrs.get_float("epsilon", 1e-6),
          .weight_decay = attrs.get_float("weight_decay", 0),
          .adapt = attrs.get_int("adapt", 1) != 0};
}

cuda::LarsForm lars_form(const ir::Attrs& attrs) {
  return {.lr_scale = attrs.get_float("lr_scale", 1),
          .momentum = attrs.get_float("momentum", 0.9),
          .weight_decay = attrs.get_float("weight_decay", 0),
          .eta = attrs.get_float("eta", 0.001),
          .epsilon = attrs.get_float("epsilon", 1e-8),
          .adapt = attrs.get_int("adapt", 1) != 0};
}

cuda::FactoredForm factored_form(const ir::Attrs& attrs) {
  return {.lr_scale = attrs.get_float("lr_scale", 1),
          .beta2_decay = attrs.get_float("beta2_decay", -0.8),
          .epsilon1 = attrs.get_float("epsilon1", 0),
          .epsilon2 = attrs.get_float("epsilon2", 1e-3),
          .clip_threshold = attrs.get_float("clip_threshold", 1),
          .weight_decay = attrs.get_float("weight_decay", 0)};
}

cuda::MuonForm muon_form(const ir::Attrs& attrs) {
  const std::vector<double> abc = attrs.get_floats("coefficients", {3.4445, -4.7750, 2.0315});
  return {.lr_scale = attrs.get_float("lr_scale", 1),
          .momentum = attrs.get_float("momentum", 0.95),
          .weight_decay = attrs.get_float("weight_decay", 0.1),
          .epsilon = attrs.get_float("epsilon", 1e-7),
          .a = abc[0],
          .b = abc[1],
          .c = abc[2],
          .steps = attrs.get_int("steps", 5),
          .nesterov = attrs.get_int("nesterov", 1) != 0,
          .bf16 = attrs.get_string("iterate", "f32") == "bf16",
          .match_adamw = attrs.get_string("adjust", "original") == "match_rms_adamw"};
}

/// A node whose parameters are cut into blocks along their first dimension.
struct TrustNode : UpdateNode {
  std::vector<int64_t> blocks;
  int64_t parts;
  size_t squares = 0;  // the operand with the sums of all ranks; 0: none

  TrustNode(const ir::NodeView& node, std::string_view op)
      : UpdateNode(node, op), blocks(node.attrs.get_ints("blocks")), parts(node.attrs.get_int("parts", 1)) {
    if (blocks.empty()) {
      for (const Dims& d : dims) {
        const NormBlocks whole = norm_blocks(d);
        blocks.push_back(whole.dim == 0 ? whole.blocks : 1);
      }
    }
    if (layout.has_squares(copies.first_operand)) squares = copies.first_operand - 1;
  }
  int64_t workspace_bytes() const { return cuda::trust_workspace_bytes({elements, blocks}); }
  cuda::TrustCall call(const ir::RunArgs& args, const std::vector<cuda::UpdateTensor>& tensors) const {
    return {.update = {args.stream, tensors, args.workspace},
            .blocks = blocks,
            .squares = squares == 0 ? nullptr : in_ptr<double>(args, squares),
            .parts = squares == 0 ? 1 : parts};
  }
};

/// A kernel that calls `update(call, operands, form)`; `one_block`: no parameter is shared by ranks.
template <class Form, class Update>
ir::Kernel trust_kernel(std::string op, Form (*form_of)(const ir::Attrs&), Update update, bool one_block) {
  auto prepare = [=](const ir::KernelInit& init) {
    TrustNode fixed(init.node, op);
    if (one_block) std::fill(fixed.blocks.begin(), fixed.blocks.end(), 1);
    const auto node = std::make_shared<const TrustNode>(std::move(fixed));
    auto run = [node, update, form = form_of(init.node.attrs)](const ir::RunArgs& args) {
      const std::vector<cuda::UpdateTensor> tensors = node->tensors(args);
      update(node->call(args, tensors), node->operands(args), form);
    };
    return ir::BoundKernel{run, node->workspace_bytes()};
  };
  return {.name = "multi_tensor", .refuse = refuse_wide_update, .prepare = prepare};
}

/// Sums of squares of the blocks in this rank's parts.
ir::Kernel trust_squares_kernel() {
  auto prepare = [](const ir::KernelInit& init) {
    const std::string rule = init.node.attrs.get_string("rule", "");
    const auto node = std::make_shared<const TrustNode>(init.node, rule + "_update");
    auto run = [node, is_lamb = rule == "lamb", lamb = lamb_form(init.node.attrs),
                lars = lars_form(init.node.attrs)](const ir::RunArgs& args) {
      const std::vector<cuda::UpdateTensor> tensors = node->tensors(args, /*writes=*/false);
      const cuda::TrustCall call = node->call(args, tensors);
      auto* out = out_ptr<double>(args, 0);
      is_lamb ? cuda::lamb_squares(call, node->operands(args), lamb, out)
              : cuda::lars_squares(call, node->operands(args), lars, out);
    };
    return ir::BoundKernel{run, node->workspace_bytes()};
  };
  return {.name = "multi_tensor", .refuse = refuse_wide_update, .prepare = prepare};
}

/// The last two axes form the matrix; the axes before them count matrices.
cuda::FactoredTensor factored_tensor(const cuda::UpdateTensor& at, const Dims& dims) {
  return {at, product(dims, 0, dims.size() - 2), dims[dims.size() - 2], dims.back()};
}

ir::Kernel adafactor_kernel() {
  auto prepare = [](const ir::KernelInit& init) {
    const auto node = std::make_shared<const UpdateNode>(init.node, "adafactor_update");
    const auto factored = [node](std::vector<cuda::UpdateTensor> tensors) {
      std::vector<cuda::FactoredTensor> out;
      for (size_t i = 0; i < tensors.size(); ++i) out.push_back(factored_tensor(tensors[i], node->dims[i]));
      return out;
    };
    auto run = [=, form = factored_form(init.node.attrs)](const ir::RunArgs& args) {
      cuda::factored_update(args.stream, factored(node->tensors(args)), node->operands(args), form,
                            args.workspace);
    };
    const auto shapes = factored(std::vector<cuda::UpdateTensor>(node->dims.size()));
    return ir::BoundKernel{run, cuda::factored_workspace_bytes(shapes)};
  };
  return {.name = "multi_tensor", .refuse = refuse_wide_update, .prepare = prepare};
}

/// Matrices of equal extents, which are iterated together.
struct MuonBatch {
  std::vector<size_t> groups;
  cuda::MuonPlan plan;
};

std::vector<MuonBatch> muon_batches(const ir::KernelInit& init, const UpdateNode& node,
                                    const cuda::MuonForm& form) {
  constexpr int64_t kMostElements = int64_t{1} << 25;  // of a batch, whose iterate is stored twice
  std::map<Dims, std::vector<size_t>> alike;
  for (size_t g = 0; g < node.dims.size(); ++g) {
    if (node.elements[g] > 0) alike[node.dims[g]].push_back(g);
  }
  std::vector<MuonBatch> out;
  for (const auto& [dims, groups] : alike) {
    const auto most = static_cast<size_t>(std::max<int64_t>(1, kMostElements / (dims[0] * dims[1])));
    for (size_t at = 0; at < groups.size(); at += most) {
      const std::vector<size_t> run(
          groups.begin() + static_cast<int64_t>(at),
          groups.begin() + static_cast<int64_t>(std::min(groups.size(), at + most)));
      const auto count = static_cast<int64_t>(run.size());
      out.push_back({run, {{init.device, &init.packs}, form, count, dims[0], dims[1]}});
    }
  }
  return out;
}

ir::Kernel muon_kernel() {
  auto prepare = [](const ir::KernelInit& init) {
    const auto node = std::make_shared<const UpdateNode>(init.node, "muon_update");
    const auto batches =
        std::make_shared<const std::vector<MuonBatch>>(muon_batches(init, *node, muon_form(init.node.attrs)));
    int64_t bytes = 0;
    for (const MuonBatch& b : *batches) bytes = std::max(bytes, b.plan.workspace_bytes());
    auto run = [node, batches](const ir::RunArgs& args) {
      const std::vector<cuda::UpdateTensor> all = node->tensors(args);
      for (const MuonBatch& b : *batches) {
        std::vector<cuda::UpdateTensor> tensors;
        for (size_t g : b.groups) tensors.push_back(all[g]);
        b.plan.run({args.stream, tensors, args.workspace}, node->operands(args));
      }
    };
    return ir::BoundKernel{run, bytes};
  };
  return {.name = "multi_tensor", .refuse = refuse_wide_update, .prepare = prepare};
}

}  // namespace

std::vector<CudaKernels> scaled_updates_cuda_kernels() {
  return {{"lamb_update", {trust_kernel("lamb_update", lamb_form, cuda::lamb_update, false)}},
          {"lars_update", {trust_kernel("lars_update", lars_form, cuda::lars_update, false)}},
          {"trust_squares", {trust_squares_kernel()}},
          {"adafactor_update", {adafactor_kernel()}},
          {"adafactor_vector_update",
           {trust_kernel("adafactor_vector_update", factored_form, cuda::factored_vector_update, true)}},
          {"muon_update", {muon_kernel()}}};
}

}  // namespace trireme::ops
