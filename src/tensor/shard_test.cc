// Parts of tensors on a mesh: each set of replicas holds every element once, in the specified order.
#include "tensor/shard.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace trireme::tensor {
namespace {

const MeshShape kMesh({{"dp", 2}, {"tpr", 2}, {"tp", 2}});

TEST(Shard, PrintsPerAxis) {
  Shard s;
  EXPECT_EQ(s.to_string(kMesh), "");
  s.set(0, Placement::split(1));
  s.set(2, Placement::partial_sum());
  EXPECT_EQ(s.to_string(kMesh), "@dp:S(1)@tp:P");
  EXPECT_EQ(Placement::split(1, 3).to_string(), "S(1/3)");
  EXPECT_EQ(Shard({Placement{}, Placement{}}), Shard());
}

TEST(Shard, TheLastAxisCutsFirst) {
  Shard s({Placement{}, Placement::split(0), Placement::split(0)});
  EXPECT_EQ(local_boxes({8}, s, kMesh, {0, 0, 0}), (std::vector<Box>{{{0}, {2}}}));
  EXPECT_EQ(local_boxes({8}, s, kMesh, {0, 1, 0}), (std::vector<Box>{{{2}, {2}}}));
  EXPECT_EQ(local_boxes({8}, s, kMesh, {1, 0, 1}), (std::vector<Box>{{{4}, {2}}}));
}

TEST(Shard, SectionsAreEachSplit) {
  const Shard s({Placement{}, Placement{}, Placement::split(1, 3)});
  EXPECT_EQ(local_boxes({4, 12}, s, kMesh, {0, 0, 1}),
            (std::vector<Box>{{{0, 2}, {4, 2}}, {{0, 6}, {4, 2}}, {{0, 10}, {4, 2}}}));
  EXPECT_EQ(local_dims({4, 12}, s, kMesh, {0, 0, 1}), (Dims{4, 6}));
  EXPECT_THROW(local_dims({4, 9}, s, kMesh, {0, 0, 1}), base::Error);
  EXPECT_THROW(local_dims({4, 10}, s, kMesh, {0, 0, 1}), base::Error);
}

TEST(Shard, UnevenPartsCoverTheExtentOnce) {
  const MeshShape mesh({{"tp", 4}});
  const Shard s({Placement::split(0)});
  int64_t at = 0;
  for (int r = 0; r < 4; ++r) {
    const Box box = local_boxes({10}, s, mesh, {r})[0];
    EXPECT_EQ(box.offset[0], at);
    at += box.size[0];
  }
  EXPECT_EQ(at, 10);
  EXPECT_EQ(local_dims({10}, s, mesh, {3}), (Dims{1}));
}

TEST(MeshShape, NamesSetsOfAxes) {
  EXPECT_EQ(kMesh.indices_of("dp,tp"), (std::vector<size_t>{0, 2}));
  EXPECT_THROW(kMesh.indices_of("tp,dp"), base::Error);
  EXPECT_THROW(kMesh.indices_of("cp"), base::Error);
  EXPECT_EQ(kMesh.extent("pp"), 1);
  EXPECT_EQ(kMesh.size(), 8);
}

}  // namespace
}  // namespace trireme::tensor
