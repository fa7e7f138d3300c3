// Shape, index, reduce, sort, signal and random ops against loops over indices in double.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <complex>
#include <map>
#include <numbers>

#include "ops/test_eval.h"

namespace trireme::ops {
namespace {

using namespace testing;  // NOLINT: the tests' own vocabulary
using Index = std::vector<int64_t>;

/// Calls f(index) for each index inside dims, row-major.
template <class F>
void each(const tensor::Dims& dims, F&& f) {
  if (tensor::element_count(dims) == 0) return;
  Index i(dims.size(), 0);
  while (true) {
    f(i);
    size_t d = dims.size();
    while (d-- > 0) {
      if (++i[d] < dims[d]) break;
      i[d] = 0;
    }
    if (d == static_cast<size_t>(-1)) return;
  }
}

size_t flat(const Index& i, const tensor::Dims& dims) {
  int64_t at = 0;
  for (size_t d = 0; d < dims.size(); ++d) at = at * dims[d] + i[d];
  return static_cast<size_t>(at);
}

/// Expects y = op(x) to equal x at from(result index).
template <class F>
void expect_moves(const Tensor& x, const Tensor& y, F&& from, const char* what) {
  const std::vector<double> in = x.to_doubles(), out = y.to_doubles();
  each(y.dims(), [&](const Index& i) {
    ASSERT_EQ(out[flat(i, y.dims())], in[flat(from(i), x.dims())]) << what << " " << tensor::to_string(i);
  });
}

TEST(Shape, TransposeAllOrdersTypesAndSizes) {
  for (const tensor::Dims& dims : {tensor::Dims{3, 5, 2, 7}, {1, 64, 1, 96}, {2, 33, 65, 1}, {4, 0, 2, 3}}) {
    for (DType t : {DType::f32, DType::f64, DType::i8, DType::f16}) {
      const Tensor x = random_tensor(t, dims, -100, 100);
      Index perm{0, 1, 2, 3};
      do {
        const Tensor y = run("transpose", {x}, {{"perm", perm}})[0];
        expect_moves(
            x, y,
            [&](const Index& i) {
              Index from(4);
              for (size_t d = 0; d < 4; ++d) from[static_cast<size_t>(perm[d])] = i[d];
              return from;
            },
            "transpose");
      } while (std::next_permutation(perm.begin(), perm.end()));
    }
  }
}

TEST(Shape, TransposePackedElements) {
  const Tensor x = Tensor::from<float>({3, 5}, {0, 1, 2, 3, 4, 5, 6, 7, 6, 5, 4, 3, 2, 1, 0});
  for (int64_t type : {21, 22}) {
    const Tensor packed = run("cast", {x}, {{"to", type}})[0];
    const Tensor back = run("cast", {run("transpose", {packed})[0]}, {{"to", int64_t{1}}})[0];
    EXPECT_EQ(back.to_doubles(), run("transpose", {x})[0].to_doubles());
  }
}

TEST(Shape, SliceWithEveryKindOfStep) {
  const Tensor x = random_tensor(DType::f32, {7, 6}, 0, 1);
  for (int64_t start : {-9, -7, -3, 0, 2, 6, 8}) {
    for (int64_t end : {-9, -2, 0, 3, 7, 99}) {
      for (int64_t step : {-3, -1, 1, 2, 5}) {
        const Tensor y = run("slice", {x, ints({start}), ints({end}), ints({0}), ints({step})})[0];
        // Steps through the range as Python defines it.
        const int64_t low = step > 0 ? 0 : -1, high = step > 0 ? 7 : 6;
        const int64_t a = std::clamp<int64_t>(start < 0 ? start + 7 : start, low, high);
        const int64_t b = std::clamp<int64_t>(end < 0 ? end + 7 : end, low, high);
        Index rows;
        for (int64_t i = a; step > 0 ? i < b : i > b; i += step) rows.push_back(i);
        ASSERT_EQ(y.dims(), (tensor::Dims{static_cast<int64_t>(rows.size()), 6}));
        expect_moves(
            x, y,
            [&](const Index& i) {
              return Index{rows[static_cast<size_t>(i[0])], i[1]};
            },
            "slice");
      }
    }
  }
}

TEST(Shape, ConcatAndSplitAreInverse) {
  const Tensor a = random_tensor(DType::f32, {2, 3, 4}, 0, 1),
               b = random_tensor(DType::f32, {2, 5, 4}, 0, 1, 2);
  const Tensor y = run("concat", {a, b}, {{"axis", int64_t{-2}}})[0];
  const std::vector<Tensor> parts = run("split", {y, ints({3, 5})}, {{"axis", int64_t{1}}}, 2);
  EXPECT_TRUE(parts[0].same_as(a));
  EXPECT_TRUE(parts[1].same_as(b));
  EXPECT_EQ(run("split", {y}, {{"axis", int64_t{1}}, {"num_outputs", int64_t{3}}}, 3)[2].dims(),
            (tensor::Dims{2, 2, 4}));
  EXPECT_THROW(run("split", {y, ints({3, 4})}, {{"axis", int64_t{1}}}, 2), base::Error);
}

TEST(Shape, LengthsOfReversedRunsAreChecked) {
  const Tensor x = random_tensor(DType::f32, {3, 2}, 0, 1);
  EXPECT_TRUE(run("reverse_sequence", {x, ints({0, 1})})[0].same_as(x));
  for (const int64_t bad : {int64_t{-1}, int64_t{4}, INT64_MAX, INT64_MIN}) {
    try {
      run("reverse_sequence", {x, ints({3, bad})});
      ADD_FAILURE() << "length " << bad;
    } catch (const base::Error& e) {
      EXPECT_EQ(e.code(), base::ErrorCode::invalid_argument);
      EXPECT_NE(e.message().find("length of a sequence is out of range"), std::string::npos) << e.message();
    }
  }
}

TEST(Shape, PadModes) {
  const Tensor x = random_tensor(DType::f32, {2, 5}, 0, 1);
  for (const std::string mode : {"constant", "reflect", "edge", "wrap"}) {
    const Tensor y = run("pad", {x, ints({1, 3, 0, 4}), Tensor::scalar(9.f)}, {{"mode", mode}})[0];
    ASSERT_EQ(y.dims(), (tensor::Dims{3, 12}));
    const std::vector<double> in = x.to_doubles(), out = y.to_doubles();
    const auto source = [&](int64_t i, int64_t n) -> int64_t {
      if (i >= 0 && i < n) return i;
      if (mode == "constant") return -1;
      if (mode == "edge") return i < 0 ? 0 : n - 1;
      if (mode == "wrap") return (i + n * 9) % n;
      while (i < 0 || i >= n) i = i < 0 ? -i : 2 * (n - 1) - i;
      return i;
    };
    each(y.dims(), [&](const Index& i) {
      const int64_t r = source(i[0] - 1, 2), c = source(i[1] - 3, 5);
      ASSERT_EQ(out[flat(i, y.dims())], r < 0 || c < 0 ? 9.0 : in[flat({r, c}, x.dims())]) << mode;
    });
  }
}

TEST(Shape, SymbolsSurvive) {
  using tensor::Dim;
  ir::Graph g;
  const auto type = [](std::vector<Dim> dims) {
    return tensor::TensorType{DType::f32, tensor::Shape(std::move(dims))};
  };
  const Dim b = Dim::symbol("batch");
  const ir::ValueId x = g.add_input("x", type({b, 128, 384}));
  const auto shape_of = [&](const char* op, std::vector<ir::ValueId> in, ir::Attrs attrs = {}) {
    return g.type(g.add1(table().need(op), std::move(in), std::move(attrs))).shape.to_string();
  };
  const auto c = [&](std::vector<int64_t> v) { return g.add_constant(ints(std::move(v))); };
  EXPECT_EQ(shape_of("reshape", {x, c({0, 0, 12, 32})}), "[batch,128,12,32]");
  EXPECT_EQ(shape_of("reshape", {x, c({-1, 128, 12, 32})}), "[batch,128,12,32]");
  EXPECT_EQ(shape_of("reshape", {x, c({0, -1})}), "[batch,49152]");
  EXPECT_EQ(shape_of("reshape", {x, c({-1, 384})}), "[?,384]");
  EXPECT_EQ(shape_of("transpose", {x}, {{"perm", Index{0, 2, 1}}}), "[batch,384,128]");
  EXPECT_EQ(shape_of("slice", {x, c({0}), c({1}), c({1})}), "[batch,1,384]");
  EXPECT_EQ(shape_of("unsqueeze", {x, c({1})}), "[batch,1,128,384]");
  EXPECT_EQ(shape_of("reduce_mean", {x, c({-1})}), "[batch,128,1]");
  EXPECT_EQ(shape_of("concat", {x, x}, {{"axis", int64_t{1}}}), "[batch,256,384]");
  EXPECT_EQ(shape_of("flatten", {x}), "[batch,49152]");
  EXPECT_EQ(shape_of("add", {x, g.add_input("w", type({384}))}), "[batch,128,384]");
}

TEST(Shape, BadShapesAreRefused) {
  const Tensor x = random_tensor(DType::f32, {2, 3}, 0, 1);
  EXPECT_THROW(run("reshape", {x, ints({4, 2})}), base::Error);
  EXPECT_THROW(run("reshape", {x, ints({-1, -1})}), base::Error);
  EXPECT_THROW(run("squeeze", {x, ints({0})}), base::Error);
  EXPECT_THROW(run("transpose", {x}, {{"perm", Index{0, 0}}}), base::Error);
  EXPECT_THROW(run("expand", {x, ints({2, 4})}), base::Error);
}

struct ReduceCase {
  const char* name;
  double (*of)(const std::vector<double>&);
};
double sum_of(const std::vector<double>& v) {
  double s = 0;
  for (double x : v) s += x;
  return s;
}
const ReduceCase kReduce[] = {
    {"reduce_sum", sum_of},
    {"reduce_mean", [](const std::vector<double>& v) { return sum_of(v) / static_cast<double>(v.size()); }},
    {"reduce_max", [](const std::vector<double>& v) { return *std::max_element(v.begin(), v.end()); }},
    {"reduce_min", [](const std::vector<double>& v) { return *std::min_element(v.begin(), v.end()); }},
    {"reduce_prod",
     [](const std::vector<double>& v) {
       double p = 1;
       for (double x : v) p *= x;
       return p;
     }},
    {"reduce_l1",
     [](const std::vector<double>& v) {
       double p = 0;
       for (double x : v) p += std::fabs(x);
       return p;
     }},
    {"reduce_l2",
     [](const std::vector<double>& v) {
       double p = 0;
       for (double x : v) p += x * x;
       return std::sqrt(p);
     }},
    {"reduce_sum_square",
     [](const std::vector<double>& v) {
       double p = 0;
       for (double x : v) p += x * x;
       return p;
     }},
    {"reduce_log_sum", [](const std::vector<double>& v) { return std::log(sum_of(v)); }},
    {"reduce_log_sum_exp",
     [](const std::vector<double>& v) {
       double p = 0;
       for (double x : v) p += std::exp(x);
       return std::log(p);
     }},
};

TEST(Reduce, AllAxesSubsetsOfEveryReduction) {
  const tensor::Dims dims{3, 4, 5, 70};
  for (const ReduceCase& c : kReduce) {
    for (DType t : {DType::f32, DType::f64}) {
      const Tensor x = random_tensor(t, dims, 0.9, 1.1);
      const std::vector<double> in = x.to_doubles();
      for (int mask = 1; mask < 16; ++mask) {
        Index axes;
        for (int d = 0; d < 4; ++d) {
          if (mask >> d & 1) axes.push_back(d - 4);
        }
        const Tensor y = run(c.name, {x, ints(axes)})[0];
        std::map<size_t, std::vector<double>> groups;
        each(dims, [&](Index i) {
          const double v = in[flat(i, dims)];
          for (size_t d = 0; d < 4; ++d) i[d] = mask >> d & 1 ? 0 : i[d];
          groups[flat(i, y.dims())].push_back(v);
        });
        const std::vector<double> got = y.to_doubles();
        ASSERT_EQ(groups.size(), got.size());
        for (const auto& [at, values] : groups) {
          const double want = c.of(values);
          ASSERT_NEAR(got[at], want, (t == DType::f32 ? 2e-6 : 1e-11) * std::max(1.0, std::fabs(want)))
              << c.name << mask;
        }
      }
    }
  }
}

TEST(Reduce, BothKernelsAgree) {
  for (const tensor::Dims& dims : {tensor::Dims{1, 700}, {700, 1}, {33, 65}, {2, 9000}, {9000, 3}}) {
    const Tensor x = random_tensor(DType::f32, dims, 0.999, 1.001);
    for (const ReduceCase& c : kReduce) {
      for (int64_t axis : {0, 1}) {
        if (dims[static_cast<size_t>(axis)] == 1) continue;
        const std::vector<double> a = run_kernel(c.name, "vector", {x, ints({axis})}).to_doubles();
        const std::vector<double> b = run_kernel(c.name, "reference", {x, ints({axis})}).to_doubles();
        for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 3e-6 * std::fabs(b[i])) << c.name;
      }
    }
    for (int64_t axis : {0, 1}) {
      const ir::Attrs attrs{{"axis", axis}};
      EXPECT_TRUE(run_kernel("arg_max", "vector", {x}, attrs)
                      .same_as(run_kernel("arg_max", "reference", {x}, attrs)));
    }
  }
}

TEST(Reduce, EdgesOfTheDefinition) {
  const Tensor empty = Tensor::zeros(DType::f32, {2, 0});
  EXPECT_EQ(run("reduce_sum", {empty, ints({1})}, {{"keepdims", int64_t{0}}})[0].to_doubles(),
            (std::vector<double>{0, 0}));
  EXPECT_EQ(run("reduce_prod", {empty, ints({1})})[0].to_doubles(), (std::vector<double>{1, 1}));
  EXPECT_EQ(run("reduce_max", {empty, ints({1})})[0].to_doubles(),
            (std::vector<double>{-INFINITY, -INFINITY}));
  const Tensor big = Tensor::from<float>({2}, {1000, 1000});
  EXPECT_NEAR(run("reduce_log_sum_exp", {big})[0].to_doubles()[0], 1000 + std::log(2.0), 1e-3);
  EXPECT_TRUE(run("reduce_sum", {big, ints({})}, {{"noop_with_empty_axes", int64_t{1}}})[0].same_as(big));
}

TEST(Reduce, ResultsDoNotDependOnTheTeam) {
  const Tensor x = random_tensor(DType::f32, {257, 1031}, -1, 1);
  base::ThreadPool one(1), four(4);
  for (int64_t axis : {0, 1}) {
    const Tensor a = evaluate(table().need("reduce_sum"), {}, {x, ints({axis})}, 1, one)[0];
    EXPECT_TRUE(a.same_as(evaluate(table().need("reduce_sum"), {}, {x, ints({axis})}, 1, four)[0]));
  }
}

TEST(Reduce, ArgAndScan) {
  const Tensor x = Tensor::from<float>({2, 4}, {3, 1, 3, 2, 0, 5, 5, -1});
  EXPECT_EQ(run("arg_max", {x}, {{"axis", int64_t{1}}})[0].to_ints(), (Index{0, 1}));
  EXPECT_EQ(run("arg_max", {x}, {{"axis", int64_t{1}}, {"select_last_index", int64_t{1}}})[0].to_ints(),
            (Index{2, 2}));
  EXPECT_EQ(run("arg_min", {x}, {{"axis", int64_t{0}}})[0].to_ints(), (Index{1, 0, 0, 1}));
  const Tensor v = Tensor::from<int32_t>({4}, {1, 2, 3, 4});
  const auto scan = [&](int64_t exclusive, int64_t reverse) {
    return run("cum_sum", {v, ints({0})}, {{"exclusive", exclusive}, {"reverse", reverse}})[0].to_ints();
  };
  EXPECT_EQ(scan(0, 0), (Index{1, 3, 6, 10}));
  EXPECT_EQ(scan(1, 0), (Index{0, 1, 3, 6}));
  EXPECT_EQ(scan(0, 1), (Index{10, 9, 7, 4}));
  EXPECT_EQ(scan(1, 1), (Index{9, 7, 4, 0}));
}

TEST(Gather, SlicesTuplesAndErrors) {
  const Tensor x = random_tensor(DType::f32, {4, 5, 6}, 0, 1);
  const Tensor at = Tensor::from<int64_t>({2, 2}, {3, -1, 0, -4});
  expect_moves(
      x, run("gather", {x, at}, {{"axis", int64_t{1}}})[0],
      [&](const Index& i) {
        const int64_t k = at.to_ints()[static_cast<size_t>(i[1] * 2 + i[2])];
        return Index{i[0], k < 0 ? k + 5 : k, i[3]};
      },
      "gather");
  const Tensor pairs = Tensor::from<int64_t>({2, 2}, {3, -1, 0, 4});
  expect_moves(
      x, run("gather_nd", {x, pairs})[0],
      [&](const Index& i) {
        return i[0] == 0 ? Index{3, 4, i[1]} : Index{0, 4, i[1]};
      },
      "gather_nd");
  for (int64_t bad : {5, -6}) {
    try {
      run("gather", {x, ints({1, bad})}, {{"axis", int64_t{1}}});
      FAIL() << "index " << bad;
    } catch (const base::Error& e) {
      EXPECT_EQ(e.code(), base::ErrorCode::invalid_argument);
      EXPECT_NE(e.message().find(std::to_string(bad)), std::string::npos) << e.message();
    }
  }
  EXPECT_THROW(run("gather_nd", {x, Tensor::from<int64_t>({1, 1}, {4})}), base::Error);
  EXPECT_THROW(
      run("scatter_nd", {x, Tensor::from<int64_t>({1, 3}, {0, 0, 6}), Tensor::from<float>({1}, {1})}),
      base::Error);
}

TEST(Scatter, ReductionsWithRepeatedIndices) {
  const Tensor x = Tensor::from<float>({4}, {1, 2, 3, 4}), at = ints({1, 1, -1}),
               u = Tensor::from<float>({3}, {5, 7, 0.5f});
  const auto result = [&](const char* mode) {
    return run("scatter_elements", {x, at, u}, {{"reduction", std::string(mode)}})[0].to_doubles();
  };
  EXPECT_EQ(result("none"), (std::vector<double>{1, 7, 3, 0.5}));
  EXPECT_EQ(result("add"), (std::vector<double>{1, 14, 3, 4.5}));
  EXPECT_EQ(result("mul"), (std::vector<double>{1, 70, 3, 2}));
  EXPECT_EQ(result("max"), (std::vector<double>{1, 7, 3, 4}));
  EXPECT_EQ(result("min"), (std::vector<double>{1, 2, 3, 0.5}));
}

TEST(Sort, TopKWithTiesAndNaN) {
  const Tensor x = Tensor::from<float>({6}, {2, 5, 5, std::nanf(""), 1, 2});
  const std::vector<Tensor> most = run("top_k", {x, ints({4})}, {}, 2);
  EXPECT_EQ(most[1].to_ints(), (Index{3, 1, 2, 0}));
  EXPECT_EQ(run("top_k", {x, ints({3})}, {{"largest", int64_t{0}}}, 2)[1].to_ints(), (Index{4, 0, 5}));
  EXPECT_THROW(run("top_k", {x, ints({7})}, {}, 2), base::Error);
}

TEST(Sort, UniqueAndNonZero) {
  const Tensor x = Tensor::from<int32_t>({6}, {3, 1, 3, 0, 1, 3});
  const std::vector<Tensor> u = run("unique", {x}, {}, 4);
  EXPECT_EQ(u[0].to_ints(), (Index{0, 1, 3}));
  EXPECT_EQ(u[1].to_ints(), (Index{3, 1, 0}));
  EXPECT_EQ(u[2].to_ints(), (Index{2, 1, 2, 0, 1, 2}));
  EXPECT_EQ(u[3].to_ints(), (Index{1, 2, 3}));
  EXPECT_EQ(run("unique", {x}, {{"sorted", int64_t{0}}}, 1)[0].to_ints(), (Index{3, 1, 0}));
  EXPECT_EQ(run("non_zero", {x.reshaped({2, 3})})[0].to_ints(), (Index{0, 0, 0, 1, 1, 0, 1, 2, 1, 2}));
}

TEST(Signal, DftOfAnyLength) {
  for (int64_t n : {1, 2, 3, 8, 12, 17, 100}) {
    const Tensor x = random_tensor(DType::f64, {2, n, 2}, -1, 1);
    for (int64_t inverse : {0, 1}) {
      const std::vector<double> in = x.to_doubles(),
                                got = run("dft", {x}, {{"inverse", inverse}})[0].to_doubles();
      for (int64_t b = 0; b < 2; ++b) {
        for (int64_t k = 0; k < n; ++k) {
          std::complex<double> sum = 0;
          for (int64_t t = 0; t < n; ++t) {
            const double angle = 2 * std::numbers::pi * static_cast<double>(k * t) / static_cast<double>(n);
            const size_t i = static_cast<size_t>((b * n + t) * 2);
            sum += std::complex<double>(in[i], in[i + 1]) * std::polar(1.0, inverse ? angle : -angle);
          }
          if (inverse) sum /= static_cast<double>(n);
          const size_t i = static_cast<size_t>((b * n + k) * 2);
          ASSERT_NEAR(got[i], sum.real(), 1e-10) << n;
          ASSERT_NEAR(got[i + 1], sum.imag(), 1e-10) << n;
        }
      }
    }
  }
}

TEST(Linalg, EinsumAgainstLoops) {
  const Tensor a = random_tensor(DType::f64, {2, 3, 4}, -1, 1),
               b = random_tensor(DType::f64, {2, 4, 5}, -1, 1, 2);
  const std::vector<double> av = a.to_doubles(), bv = b.to_doubles();
  for (const char* equation : {"bij,bjk->bik", "...ij,...jk->...ik"}) {
    const Tensor y = run("einsum", {a, b}, {{"equation", std::string(equation)}})[0];
    ASSERT_EQ(y.dims(), (tensor::Dims{2, 3, 5})) << equation;
    const std::vector<double> got = y.to_doubles();
    each(y.dims(), [&](const Index& i) {
      double sum = 0;
      for (int64_t j = 0; j < 4; ++j)
        sum += av[flat({i[0], i[1], j}, a.dims())] * bv[flat({i[0], j, i[2]}, b.dims())];
      ASSERT_NEAR(got[flat(i, y.dims())], sum, 1e-12) << equation;
    });
  }
  // Without "->" the letters that occur once remain, so the batch is summed.
  const Tensor summed = run("einsum", {a, b}, {{"equation", std::string("bij,bjk->ik")}})[0];
  EXPECT_TRUE(run("einsum", {a, b}, {{"equation", std::string("bij,bjk")}})[0].same_as(summed));
  const Tensor square = random_tensor(DType::f64, {3, 3}, -1, 1);
  const std::vector<double> s = square.to_doubles();
  EXPECT_NEAR(run("einsum", {square}, {{"equation", std::string("ii->")}})[0].to_doubles()[0],
              s[0] + s[4] + s[8], 1e-12);
  const double det = s[0] * (s[4] * s[8] - s[5] * s[7]) - s[1] * (s[3] * s[8] - s[5] * s[6]) +
                     s[2] * (s[3] * s[7] - s[4] * s[6]);
  EXPECT_NEAR(run("det", {square})[0].to_doubles()[0], det, 1e-12);
  EXPECT_THROW(run("einsum", {a, b}, {{"equation", std::string("bij,bkj->bik")}}), base::Error);
}

TEST(Linalg, EinsumAsMatrixProduct) {
  // Letters have distinct extents, so that a wrong order cannot pass by chance.
  const std::map<char, int64_t> extent{{'b', 2}, {'h', 3}, {'i', 4}, {'j', 5}, {'k', 6}, {'l', 7}};
  for (const std::string equation : {"ij,jk->ik", "bij,bjk->bik", "bhij,bhkj->bhik", "bihk,bjhk->bhij",
                                     "ij,kl->ljik", "bhij,bjhk->bihk", "ijk,jkl->il", "i,i->", "i,j->ji"}) {
    const auto tensor_of = [&](const std::string& letters, uint64_t seed) {
      tensor::Dims dims;
      for (char c : letters) dims.push_back(extent.at(c));
      return random_tensor(DType::f32, dims, -1, 1, seed);
    };
    const size_t comma = equation.find(','), arrow = equation.find("->");
    const std::vector<Tensor> in{tensor_of(equation.substr(0, comma), 1),
                                 tensor_of(equation.substr(comma + 1, arrow - comma - 1), 2)};
    const ir::Attrs attrs{{"equation", equation}};
    const std::vector<double> got = run_kernel("einsum", "matmul", in, attrs).to_doubles();
    const std::vector<double> want = run_kernel("einsum", "reference", in, attrs).to_doubles();
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-5) << equation;
  }
}

TEST(Random, MomentsAndRepetition) {
  const ir::Attrs attrs{{"shape", Index{200, 500}}, {"mean", 2.0}, {"scale", 3.0}, {"seed", 7.0}};
  const Tensor y = run("random_normal", {}, attrs)[0];
  EXPECT_TRUE(y.same_as(run("random_normal", {}, attrs)[0]));
  const std::vector<double> v = y.to_doubles();
  const double n = static_cast<double>(v.size()), mean = sum_of(v) / n;
  double variance = 0;
  for (double x : v) variance += (x - mean) * (x - mean) / n;
  EXPECT_NEAR(mean, 2, 0.05);  // five standard errors
  EXPECT_NEAR(std::sqrt(variance), 3, 0.04);
  const Tensor p =
      run("constant_of_shape", {ints({10000})}, {{"value", Tensor::from<float>({1}, {0.3f})}})[0];
  EXPECT_NEAR(sum_of(run("bernoulli", {p})[0].to_doubles()), 3000, 250);
  const Tensor logits = Tensor::from<float>({1, 3}, {std::log(0.5f), std::log(0.3f), std::log(0.2f)});
  std::vector<double> counts(3, 0);
  for (int64_t c : run("multinomial", {logits}, {{"sample_size", int64_t{10000}}})[0].to_ints())
    ++counts.at(static_cast<size_t>(c));
  EXPECT_NEAR(counts[0], 5000, 250);
  EXPECT_NEAR(counts[2], 2000, 200);
}

}  // namespace
}  // namespace trireme::ops
