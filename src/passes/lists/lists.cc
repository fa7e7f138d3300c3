// The ordered lists of passes, and the loop that runs, times and verifies the passes.
#include "passes/lists/lists.h"

#include <algorithm>
#include <chrono>

#include "passes/cleanup/captures.h"
#include "passes/cleanup/cleanup.h"
#include "passes/cleanup/fold.h"
#include "passes/fuse/batch_norm.h"
#include "passes/fuse/block_steps.h"
#include "passes/fuse/conv_bias_sums.h"
#include "passes/fuse/decode_steps.h"
#include "passes/fuse/dense.h"
#include "passes/fuse/einsum.h"
#include "passes/fuse/elementwise.h"
#include "passes/fuse/padded_scores.h"
#include "passes/fuse/padded_stems.h"
#include "passes/fuse/pool_gradients.h"
#include "passes/fuse/pooled_convs.h"
#include "passes/fuse/product_epilogues.h"
#include "passes/fuse/separable.h"
#include "passes/fuse/train_norms.h"
#include "passes/fuse/transformer.h"
#include "passes/layout/layout.h"
#include "passes/layout/moves.h"
#include "passes/layout/padded_windows.h"
#include "passes/precision/blocks.h"
#include "passes/precision/byte_maps.h"
#include "passes/precision/byte_moves.h"
#include "passes/precision/casts.h"
#include "passes/precision/quantized.h"
#include "passes/precision/stored_products.h"

namespace trireme::passes {

const std::vector<Pass>& prepare_passes() {
  static const std::vector<Pass> list{
      {"noops", "removes nodes that change nothing", remove_noops},
      {"integer", "quantize/dequantize pairs become integer products and sums", use_integer_kernels},
      {"fold", "computes nodes whose operands are constant", fold_constants},
      {"captures", "subgraphs have the constants that they read outside", bind_captures},
      {"blocks", "products and lookups read weights in blocks as they are stored", keep_blocks},
      {"stored", "products read weights of few bits as they are stored", keep_stored_weights},
      {"byte_moves", "quantized values are moved as bytes", move_bytes},
      {"byte_maps", "functions of one 8-bit tensor become tables", use_byte_maps},
      {"batch_norm", "folds batch normalization into the convolution before it", fold_batch_norm},
  };
  return list;
}

const std::vector<Pass>& bucket_passes() {
  static const std::vector<Pass> list{
      {"einsum", "batched sums of two operands are matrix products", open_einsum},
      {"moves", "chains of transposes and reshapes transpose once, or not at all", merge_moves},
      {"bucket_noops", "removes nodes that change nothing now that shapes are known", remove_noops},
      {"cse", "computes equal nodes once", merge_equal_nodes},
      {"activations", "gathers GELU, SiLU and hard-swish", gather_activations},
      {"norms", "gathers layer norm and RMS norm", gather_norms},
      {"softmax", "gathers softmax", gather_softmax},
      {"attention", "gathers attention", gather_attention},
      {"attention_moves", "what stands before queries, keys and values transposes once, or not at all",
       merge_moves},
      {"packed_attention", "attention reads queries, keys and values in the projection they share",
       pack_attention},
      {"affine_norms", "batch norms that no convolution took are a product and a sum", open_batch_norm},
      {"padding", "padding moves into the convolutions and pools behind it", absorb_padding},
      {"channels_last", "convolutions and pools in [n,h,w,c]", use_channels_last},
      {"sink_transposes", "moves layout changes down until they cancel", sink_transposes},
      {"input_layout", "first convolutions read channels-first inputs directly", absorb_input_layout},
      {"linear", "products with constant weights", make_linear},
      {"epilogue", "bias, activation and residual move into products and convolutions", fuse_epilogues},
      {"projections", "queries, keys and values of one input are one product", join_projections},
      {"joined_attention", "attention reads that product in place", pack_attention},
      {"separable", "depthwise convolutions run with the pointwise ones around them", gather_separable},
      {"block_products", "products of one value by weights in blocks are one", join_block_products},
      {"final_noops", "removes what the passes above left", remove_noops},
      {"fuse_elementwise", "runs of elementwise nodes pass over memory once", fuse_elementwise},
  };
  return list;
}

const std::vector<Pass>& forward_passes() {
  static const std::vector<Pass> list{
      {"train_einsum", "batched sums of two operands are matrix products", open_einsum},
      {"train_moves", "chains of transposes and reshapes transpose once, or not at all", merge_moves},
      {"train_noops", "removes nodes that change nothing", remove_noops},
      {"train_cse", "computes equal nodes once", merge_equal_nodes},
      {"train_activations", "gathers GELU, SiLU and hard-swish", gather_activations},
      {"train_norms", "gathers layer norm and RMS norm", gather_norms},
      {"train_softmax", "gathers softmax", gather_softmax},
      {"train_attention", "gathers attention", gather_attention},
      {"train_attention_moves", "what stands before queries, keys and values transposes once, or not at all",
       merge_moves},
      {"train_packed_attention", "attention reads the projection that q, k and v share", pack_attention},
      {"train_channels_last", "convolutions and pools in [n,h,w,c]", use_channels_last},
      {"train_sink", "moves layout changes down until they cancel", sink_transposes},
      {"train_batch_norms", "sums and rectifiers move into the batch norms before them", fuse_train_norms},
      {"train_linear", "products with weights", make_linear},
      {"train_bias", "biases move into products", fuse_biases},
      {"train_final_noops", "removes what the passes above left", remove_noops},
  };
  return list;
}

const std::vector<Pass>& step_passes(tensor::DeviceKind on) {
  const auto passes_for = [](bool is_cpu) {
    std::vector<Pass> list{
        {"step_noops", "removes nodes that change nothing", remove_noops},
        {"step_cse", "computes equal nodes once", merge_equal_nodes},
        {"step_norm_sums", "sums of gradients move into the norms before them", fuse_norm_gradient_sums},
        {"step_pools", "gradients of rectifiers move into those of the pools behind them",
         fuse_pool_gradients},
        {"step_epilogue", "activation and residual move into products and convolutions", fuse_epilogues}};
    if (!is_cpu) {
      list.insert(list.begin() + 2,
                  {{"step_scores", "scores of a vocabulary are padded to aligned rows", pad_scores},
                   {"step_stems", "images of few channels are padded to what tensor cores take", pad_stems}});
    } else {
      list.push_back(
          {"step_conv_biases", "gradients of biases move into those of weights", fuse_conv_bias_sums});
      list.push_back(
          {"step_pooled_convs", "maxima move into the convolutions before them", fuse_pooled_convs});
    }
    list.push_back({"step_fuse", "runs of elementwise nodes pass over memory once", fuse_elementwise});
    return list;
  };
  static const std::vector<Pass> cpu = passes_for(true), other = passes_for(false);
  return on == tensor::DeviceKind::cpu ? cpu : other;
}

const std::vector<Pass>& cast_passes(tensor::DeviceKind on) {
  static const std::vector<Pass> none,
      device{{"step_casts", "casts vanish into the kernels beside them",
              [](ir::Graph&graph) { return absorb_casts(graph, tensor::DeviceKind::cuda); }}};
  return on == tensor::DeviceKind::cpu ? none : device;
}

const std::vector<Pass>& inference_passes(tensor::DeviceKind on) {
  static const std::vector<Pass> cpu{{"block_steps",
                                      "what stands beside products with weights in blocks moves into them",
                                      fuse_block_steps}},
      device{{"decode_steps", "what stands beside the products of a decoding step moves into few launches",
              fuse_decode_steps}};
  return on == tensor::DeviceKind::cpu ? cpu : device;
}

const std::vector<Pass>& program_passes(tensor::DeviceKind on) {
  static const std::vector<Pass> none,
      device{{"program_epilogue", "GELU and its gradient move into the products before them",
              finish_in_products}};
  return on == tensor::DeviceKind::cpu ? none : device;
}

namespace {

void check_known(std::string_view name) {
  if (name.empty()) return;
  std::string known;
  for (const auto* list :
       {&prepare_passes(), &bucket_passes(), &forward_passes(), &step_passes(tensor::DeviceKind::cpu),
        &step_passes(tensor::DeviceKind::cuda), &cast_passes(tensor::DeviceKind::cuda),
        &inference_passes(tensor::DeviceKind::cpu), &inference_passes(tensor::DeviceKind::cuda),
        &program_passes(tensor::DeviceKind::cuda)}) {
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
