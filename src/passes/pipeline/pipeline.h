// The pipeline axis: a graph is cut into parts of its layers, and the training step of a part into programs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "passes/pipeline/pipeline_schedule.h"
#include "passes/train/train.h"

namespace trireme::passes {

/// Where the parts of a model begin, in terms that hold for every size of its inputs: the nodes that read
/// weights are counted in order, and each part but the first begins behind some weighted node and up to the
/// next.
struct PipelineCut {
  struct Begin {
    size_t weighted = 0;  ///< the first weighted node of the part, from 0
    std::string weight;   ///< one of its weights, to recognise it
  };
  std::vector<Begin> begins = {};   ///< of parts 1, 2, …
  std::vector<double> share = {};   ///< of the model's work, by part
  std::vector<int64_t> bytes = {};  ///< that cross from part i to part i + 1
  size_t parts() const { return begins.size() + 1; }
};

/// Cuts a forward graph (sorted, static shapes; weights are params or states) into `parts` parts. With
/// `names`, parts 1, 2, … begin at the first layer that carries the name (whole components of a node's source
/// or of its weights' names, "h.6", or a pattern with '*'). Else by cost: the longest part is as short as it
/// can be with cuts that one value crosses, residual streams and inputs of matrices first; among those with
/// fewest bytes. Throws invalid_argument for names that are not there or not in order, and for more parts
/// than weighted nodes or places to cut.
PipelineCut plan_pipeline_cut(const ir::Graph& graph, size_t parts,
                              const std::vector<std::string>& names = {});
/// The same by cost, cut only at residual streams and inputs of matrices, however long a part becomes: what
/// later passes fuse is the same in the parts as in the whole.
PipelineCut plan_stream_cut(const ir::Graph& graph, size_t parts);

/// A line for the schedule with the bubble it has if a backward takes two forwards, and one for each part:
/// where it begins, its share of the work, what it passes on.
std::string to_text(const PipelineCut& cut, const PipelineOrder& order);

/// One part as a graph of its own; extents may be symbols where the cut was planned with numbers. Its inputs
/// are those of the model that it reads, then the values that cross from the part before: "cut0.0", "cut0.1",
/// …; its outputs the values that cross to the next one, or those of the model in the last part. A value that
/// skips a part is handed through it. What depends on inputs alone (masks, positions) or on weights alone is
/// computed again in every part that reads it. State updates are in the part that computes their new content.
struct PipelinePart {
  ir::Graph graph;
  std::vector<std::string> in, out;  ///< names of the crossing values
};
/// Deterministic: all ranks get the same cuts. Throws internal if `cut` is of another model.
PipelinePart cut_part(const ir::Graph& graph, const PipelineCut& cut, size_t part);

/// Names of the params and states each part reads or updates; a tied weight is in several.
std::vector<std::vector<std::string>> weights_of_parts(const ir::Graph& graph, const PipelineCut& cut);

/// Adds the gradients of a part's graph: inputs crossing_gradient(out) for its crossing outputs, or the loss
/// weight for the scalar_loss() of `loss` (an output, kNoValue in all parts but the last); outputs
/// crossing_gradient(in), zeros where nothing depends on one. Gradients of values that are not float neither
/// exist nor cross. Returns the gradients of `wanted` (states) that the part's outputs depend on. Crossing
/// inputs come before sums of own uses, so that bits are those of the whole graph.
std::vector<ParamGradient> differentiate_part(PipelinePart& part, ir::ValueId loss,
                                              const std::vector<ir::ValueId>& wanted);

/// The programs of one part. Values pass between them by names: what forward keeps is an output "kept.0", …
/// of forward and an input of those that read it; what backward hands to weights is called "late.0", …. The
/// part's own inputs may be inputs of all three.
struct PipelinePrograms {
  ir::Graph forward;
  ir::Graph backward;  ///< with `weights` split off: the gradients of the crossing inputs
  ir::Graph weights;   ///< weight gradients; without nodes unless they are split off
};

/// Splits the differentiated graph of a part (sorted; whatever else has been added for a micro-batch,
/// accumulation of gradients for example). What its results and the states that do not depend on arriving
/// gradients need is forward; the rest is backward, or, with `splits_weights`, backward as far as the
/// gradients of the crossing inputs need it and else weights. Views and what depends on
/// weights alone (casts, ZeRO's gathers) are computed again where they are read.
PipelinePrograms split_part(const PipelinePart& part, bool splits_weights);

}  // namespace trireme::passes
