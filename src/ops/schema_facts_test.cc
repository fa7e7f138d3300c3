// Facts that schemas state about operators, held against what the operators do: what passes conclude from a
// class, a mask or index notation has to be true of every operator that has it.
#include <gtest/gtest.h>

#include "ops/table.h"

namespace trireme::ops {
namespace {

TEST(SchemaFacts, KernelsAreCalledWhatTheyAre) {
  for (const ir::OpDef& op : table().all()) {
    for (const ir::Kernel& k : op.kernels) {
      EXPECT_EQ(k.is_via_f32, k.name.ends_with("_via_f32")) << op.schema.name << " " << k.name;
      EXPECT_EQ(k.is_reference, k.name.starts_with("reference")) << op.schema.name << " " << k.name;
    }
  }
}

}  // namespace
}  // namespace trireme::ops
