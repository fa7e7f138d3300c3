// First convolutions with more channels than their images have: the resulting step.
#include "passes/fuse/padded_stems.h"

#include <gtest/gtest.h>

#include "ops/grad.h"
#include "ops/table.h"
#include "passes/test_counts.h"

namespace trireme::passes {
namespace {

using ir::ValueId;
using tensor::DType;
using tensor::Shape;
using tensor::Tensor;

struct StemForm {
  DType type = DType::bf16;
  int64_t channels = 3, group = 1;
};

/// A convolution of images [2, 9, 9, channels] with the gradients of weight and (optionally) images.
ir::Graph stem_step(const StemForm& form, bool wants_images = false) {
  ir::Graph g;
  const ValueId x = g.add_input("x", {form.type, {2, 9, 9, form.channels}});
  const ValueId w = g.add_state("w", {form.type, Shape{6, form.channels / form.group, 3, 3}});
  const ir::Attrs attrs{{"group", form.group}, {"kernel_shape", std::vector<int64_t>{3, 3}}};
  const ValueId y = g.add1(ops::table().need("conv_nhwc"), {x, w}, attrs, "stem");
  std::vector<char> wanted(g.values().size(), 0);
  wanted[ir::index(w)] = 1;
  wanted[ir::index(x)] = wants_images;
  std::vector<ValueId> gradients(g.values().size(), ir::kNoValue);
  gradients[ir::index(y)] = g.add_input("dy", g.type(y));
  gradients.resize(g.values().size(), ir::kNoValue);
  wanted.resize(g.values().size(), 0);
  ops::backpropagate(g, 0, wanted, gradients);
  g.add_output(y, "y");
  g.add_output(gradients[ir::index(w)], "dw");
  if (wants_images) g.add_output(gradients[ir::index(x)], "dx");
  g.sort();
  return g;
}

TEST(PadStems, GivesConvolutionsEightChannels) {
  for (const DType type : {DType::bf16, DType::f16}) {
    for (const int64_t channels : {1, 3, 7}) {
      for (const bool wants_images : {false, true}) {
        const ir::Graph before = stem_step({.type = type, .channels = channels}, wants_images);
        ir::Graph after = before;
        EXPECT_EQ(pad_stems(after), 2u);
        after.sort();
        ir::verify(after);
        EXPECT_EQ(count(after, "pad"), 2u) << "images once for both readers, and the weight";
        EXPECT_EQ(count(after, "slice"), 1u);
        for (const ir::Node& node : after.nodes()) {
          if (node.op_name() == "conv_nhwc_grad_x") continue;
          if (!node.op_name().starts_with("conv_nhwc")) continue;
          EXPECT_EQ(after.type(node.in[0]).shape.to_dims().back(), 8) << node.op_name();
          // Operand 1 is the weight, or the gradient of the result.
          const tensor::Dims second = after.type(node.in[1]).shape.to_dims();
          EXPECT_EQ(second[1], node.op_name() == "conv_nhwc" ? 8 : 7);
        }
        for (size_t i = 0; i < before.outputs().size(); ++i)
          EXPECT_EQ(after.type(after.outputs()[i]), before.type(before.outputs()[i]));
        EXPECT_EQ(pad_stems(after), 0u) << "once is enough";
      }
    }
  }
}

TEST(PadStems, LeavesOthers) {
  for (const StemForm& form : {StemForm{.channels = 8}, StemForm{.channels = 12},
                               StemForm{.type = DType::f32}, StemForm{.channels = 6, .group = 2}}) {
    ir::Graph g = stem_step(form);
    EXPECT_EQ(pad_stems(g), 0u);
    EXPECT_EQ(count(g, "pad"), 0u);
  }
}

}  // namespace
}  // namespace trireme::passes
