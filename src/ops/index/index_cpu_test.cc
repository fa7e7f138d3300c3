// gather and non_zero against plain loops: slices of any width, few and many indices, several results per
// row.
#include <cstring>

#include "tests/run_kernels.h"

namespace trireme::ops {
namespace {

using tensor::Dims;
using tensor::Tensor;

TEST(Gather, SlicesAreThoseOfPlainLoops) {
  std::mt19937 engine(2);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(engine() % static_cast<uint64_t>(n)); };
  for (int trial = 0; trial < 400; ++trial) {
    const int64_t outer = 1 + below(5), extent = 1 + below(20), slice = 1 + below(20),
                  count = below(4) == 0 ? 1 : below(40);
    const Tensor x = trial % 2 == 0
                         ? tests::random_tensor({outer, extent, slice}, static_cast<uint32_t>(trial))
                         : tests::random_bytes<int8_t>({outer, extent, slice}, 5, -9, 9);
    const int64_t bytes = slice * (trial % 2 == 0 ? 4 : 1);
    std::vector<int64_t> at;
    for (int64_t i = 0; i < count; ++i) at.push_back(below(2 * extent) - extent);
    const Tensor indices = Tensor::from<int64_t>({count}, std::span<const int64_t>(at));
    const Tensor y = tests::run_kernels("gather", {{"axis", int64_t{1}}}, {x, indices}, 1, {1})[0].out[0];
    for (int64_t o = 0; o < outer; ++o) {
      for (int64_t i = 0; i < count; ++i) {
        const int64_t k = at[static_cast<size_t>(i)] + (at[static_cast<size_t>(i)] < 0 ? extent : 0);
        ASSERT_EQ(0, std::memcmp(y.raw() + (o * count + i) * bytes, x.raw() + (o * extent + k) * bytes,
                                 static_cast<size_t>(bytes)))
            << trial;
      }
    }
  }
}

/// Kernels by lanes give the bits of plain loops, also for repeated indices, which are joined in order.
TEST(IndexLanes, GatherAndScatterAsPlainLoops) {
  std::mt19937 engine(4);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(engine() % static_cast<uint64_t>(n)); };
  for (int trial = 0; trial < 500; ++trial) {
    const size_t rank = static_cast<size_t>(1 + below(4));
    Dims x, at;
    for (size_t d = 0; d < rank; ++d) {
      const int64_t most = trial % 9 == 0 && d + 1 == rank ? 900 : 12;
      x.push_back(1 + below(most));
      at.push_back(1 + below(x.back()));
    }
    const int64_t axis = below(static_cast<int64_t>(rank));
    at[static_cast<size_t>(axis)] = 1 + below(trial % 7 == 0 ? 600 : 20);
    const bool is_wide = below(2) == 0;
    const int64_t extent = x[static_cast<size_t>(axis)];
    Tensor indices = Tensor::empty(is_wide ? tensor::DType::i64 : tensor::DType::i32, at);
    for (int64_t i = 0; i < indices.elements(); ++i) {
      const int64_t k = below(2 * extent) - extent;
      if (is_wide)
        indices.mutable_data<int64_t>()[static_cast<size_t>(i)] = k;
      else
        indices.mutable_data<int32_t>()[static_cast<size_t>(i)] = static_cast<int32_t>(k);
    }
    const int64_t codes[] = {1, 6, 10, 7};  // f32, i32, f16, i64
    const auto as = [&](const Tensor& t) {
      return tests::run_kernels("cast", {{"to", codes[trial % 4]}}, {t})[0].out[0];
    };
    const Tensor values = as(tests::random_tensor(x, static_cast<uint32_t>(trial), 5)),
                 updates = as(tests::random_tensor(at, static_cast<uint32_t>(trial + 1), 5));
    const char* modes[] = {"none", "add", "mul", "max", "min"};
    ir::Attrs joins{{"axis", axis}, {"reduction", std::string(modes[trial % 5])}};
    for (const int threads : {1, 3}) {
      const auto same = [&](const std::vector<tests::KernelResult>& r) {
        ASSERT_EQ(r.size(), 2u);
        ASSERT_EQ(0,
                  std::memcmp(r[0].out[0].raw(), r[1].out[0].raw(), static_cast<size_t>(r[1].out[0].bytes())))
            << trial << ": " << tensor::to_string(x) << " at " << tensor::to_string(at) << " axis " << axis;
      };
      same(tests::run_kernels("gather_elements", {{"axis", axis}}, {values, indices}, 1, {1}, threads));
      same(tests::run_kernels("scatter_elements", joins, {values, indices, updates}, 1, {1}, threads));
    }
  }
}

/// Slices of one element and of many, at tuples that repeat, by every mode and type.
TEST(IndexSlices, ScatterAsPlainLoops) {
  std::mt19937 engine(9);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(engine() % static_cast<uint64_t>(n)); };
  for (int trial = 0; trial < 300; ++trial) {
    const size_t rank = static_cast<size_t>(1 + below(4));
    const int64_t depth = 1 + below(static_cast<int64_t>(rank));
    Dims x, at, rows;
    for (size_t d = 0; d < rank; ++d) x.push_back(1 + below(trial % 9 == 0 && d + 1 == rank ? 5000 : 9));
    for (int64_t d = below(3); d > 0; --d) rows.push_back(1 + below(trial % 7 == 0 ? 40 : 5));
    at = rows, at.push_back(depth);
    rows.insert(rows.end(), x.begin() + depth, x.end());
    Tensor indices = Tensor::empty(tensor::DType::i64, at);
    for (int64_t i = 0; i < indices.elements(); ++i) {
      const int64_t extent = x[static_cast<size_t>(i % depth)];
      indices.mutable_data<int64_t>()[static_cast<size_t>(i)] = below(2 * extent) - extent;
    }
    const int64_t codes[] = {1, 6, 10, 7, 11, 3};  // f32, i32, f16, i64, f64, i8
    const auto as = [&](const Tensor& t) {
      return tests::run_kernels("cast", {{"to", codes[trial % 6]}}, {t})[0].out[0];
    };
    const Tensor values = as(tests::random_tensor(x, static_cast<uint32_t>(trial), 5)),
                 updates = as(tests::random_tensor(rows, static_cast<uint32_t>(trial + 1), 5));
    const char* modes[] = {"none", "add", "mul", "max", "min"};
    for (const int threads : {1, 3}) {
      const auto r = tests::run_kernels("scatter_nd", {{"reduction", std::string(modes[trial % 5])}},
                                        {values, indices, updates}, 1, {}, threads);
      ASSERT_EQ(r.size(), 2u);
      ASSERT_EQ(0,
                std::memcmp(r[0].out[0].raw(), r[1].out[0].raw(), static_cast<size_t>(r[1].out[0].bytes())))
          << trial << ": " << tensor::to_string(x) << " at " << tensor::to_string(at);
    }
  }
}

TEST(IndexSlices, TuplesOutOfRangeAreErrors) {
  const Tensor x = tests::random_tensor({3, 300}, 1), u = tests::random_tensor({400}, 2);
  for (const int64_t bad : {int64_t{300}, int64_t{-301}, INT64_MAX, INT64_MIN}) {
    Tensor at = Tensor::zeros(tensor::DType::i64, {400, 2});
    at.mutable_data<int64_t>()[799] = bad;
    base::ThreadPool pool(2);
    try {
      evaluate(table().need("scatter_nd"), {}, {x, at, u}, 1, pool);
      ADD_FAILURE() << bad;
    } catch (const base::Error& e) {
      EXPECT_EQ(e.code(), base::ErrorCode::invalid_argument);
      EXPECT_NE(e.message().find("an index is out of range"), std::string::npos) << e.message();
    }
  }
}

TEST(IndexLanes, IndicesOutOfRangeAreErrors) {
  const Tensor x = tests::random_tensor({3, 300}, 1), good = Tensor::zeros(tensor::DType::i64, {2, 300});
  for (const int64_t bad : {int64_t{3}, int64_t{-4}, INT64_MAX, INT64_MIN}) {
    Tensor at = good.clone();
    at.mutable_data<int64_t>()[599] = bad;
    const Tensor u = tests::random_tensor({2, 300}, 2);
    base::ThreadPool pool(2);
    const auto says = [&](const char* op, const std::vector<Tensor>& in) {
      try {
        evaluate(table().need(op), {{"axis", int64_t{0}}}, in, 1, pool);
      } catch (const base::Error& e) {
        EXPECT_EQ(e.code(), base::ErrorCode::invalid_argument);
        return e.message();
      }
      return std::string();
    };
    EXPECT_NE(says("gather_elements", {x, at}).find("an index is out of range"), std::string::npos) << bad;
    EXPECT_NE(says("scatter_elements", {x, at, u}).find("an index is out of range"), std::string::npos)
        << bad;
    EXPECT_EQ(says("gather_elements", {x, good}), "");
  }
}

TEST(NonZero, ColumnsAreTheIndicesInOrder) {
  for (const Dims& dims : {Dims{}, {0}, {1}, {700}, {3, 5}, {2, 0, 3}, {3, 1, 257}, {2, 3, 4, 5}}) {
    Tensor x = Tensor::zeros(tensor::DType::f32, dims);
    std::mt19937 engine(7);
    for (float& v : x.mutable_data<float>()) v = engine() % 3 == 0 ? 0.0f : engine() % 5 == 0 ? NAN : -1.0f;
    const Tensor y = tests::run_kernels("non_zero", {}, {x})[0].out[0];
    std::vector<std::vector<int64_t>> want(dims.size());
    for (int64_t i = 0; i < x.elements(); ++i) {
      if (x.data<float>()[static_cast<size_t>(i)] == 0) continue;
      int64_t rest = i;
      for (size_t d = dims.size(); d-- > 0; rest /= dims[d]) want[d].push_back(rest % dims[d]);
    }
    std::vector<int64_t> flat;
    for (const auto& row : want) flat.insert(flat.end(), row.begin(), row.end());
    EXPECT_EQ(y.to_ints(), flat) << tensor::to_string(dims);
  }
}

}  // namespace
}  // namespace trireme::ops
