// The ordered lists of passes, and the loop that runs, times and verifies them.
#include "passes/pass.h"

#include <algorithm>
#include <chrono>

#include "passes/cleanup.h"
#include "passes/fuse/dense.h"
#include "passes/fuse/elementwise.h"
#include "passes/fold.h"
#include "passes/layout.h"
#include "passes/precision/quantized.h"
#include "passes/train/train.h"
#include "passes/fuse/transformer.h"

namespace trireme::passes {

const std::vector<Pass>& prepare_passes() {
  static const std::vector<Pass> list{
      {"noops", "removes nodes that change nothing", remove_noops},
      {"integer", "quantize/dequantize pairs become integer products and sums", use_integer_kernels},
      {"fold", "computes nodes whose operands are constant", fold_constants},
      {"batch_norm", "folds batch normalization into the convolution before it", fold_batch_norm},
  };
  return list;
}

const std::vector<Pass>& bucket_passes() {
  static const std::vector<Pass> list{
      {"bucket_noops", "removes nodes that change nothing now that shapes are known", remove_noops},
      {"cse", "computes equal nodes once", merge_equal_nodes},
      {"activations", "gathers GELU, SiLU and hard-swish", gather_activations},
      {"norms", "gathers layer norm and RMS norm", gather_norms},
      {"softmax", "gathers softmax", gather_softmax},
      {"attention", "gathers attention", gather_attention},
      {"packed_attention", "attention reads queries, keys and values in the projection they share",
       pack_attention},
      {"channels_last", "convolutions and pools in [n,h,w,c]", use_channels_last},
      {"sink_transposes", "moves layout changes down until they cancel", sink_transposes},
      {"input_layout", "first convolutions read channels-first inputs directly", absorb_input_layout},
      {"linear", "products with constant weights", make_linear},
      {"epilogue", "bias, activation and residual move into products and convolutions", fuse_epilogues},
      {"projections", "queries, keys and values of one input are one product", join_projections},
      {"joined_attention", "attention reads that product in place", pack_attention},
      {"separable", "depthwise convolutions run with the pointwise ones around them", gather_separable},
      {"final_noops", "removes what the passes above left", remove_noops},
      {"fuse_elementwise", "runs of elementwise nodes pass over memory once", fuse_elementwise},
  };
  return list;
}

namespace {

void check_known(std::string_view name) {
  if (name.empty()) return;
  std::string known;
  for (const auto* list :
       {&prepare_passes(), &bucket_passes(), &forward_passes(), &step_passes(tensor::DeviceKind::cpu),
        &cast_passes(tensor::DeviceKind::cuda), &program_passes(tensor::DeviceKind::cuda)}) {
    for (const Pass& p : *list) {
      if (p.name == name) return;
      known += " " + p.name;
    }
  }
  base::fail(base::ErrorCode::not_found, "no pass '", name, "'; known:", known);
}

}  // namespace

std::vector<PassRecord> run_passes(const std::vector<Pass>& list, ir::Graph& graph,
                                   const PassOptions& options) {
  for (const std::string& name : options.off) check_known(name);
  check_known(options.stop_after);
  std::vector<PassRecord> records;
  for (const Pass& pass : list) {
    if (std::find(options.off.begin(), options.off.end(), pass.name) != options.off.end()) continue;
    const auto start = std::chrono::steady_clock::now();
    PassRecord record{.name = pass.name, .changes = pass.run(graph)};
    graph.sort();
    record.ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    record.nodes_after = graph.nodes().size();
    if (options.verify) ir::verify(graph);
    if (options.after) options.after(record, graph);
    records.push_back(record);
    if (pass.name == options.stop_after) break;
  }
  return records;
}

}  // namespace trireme::passes
