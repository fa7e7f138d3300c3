// Broadcasts of every form and type: each kernel gives the bits of the reference, for short and long rows.
#include <cstring>
#include <limits>

#include "backend/cpu/elementwise/typed_ops.h"
#include "ops/elementwise/elementwise.h"
#include "tests/run_kernels.h"

namespace trireme::ops {
namespace {

using tensor::Dims;
using tensor::DType;
using tensor::Tensor;

class Draw {
 public:
  explicit Draw(uint32_t seed) : engine_(seed) {}
  int64_t below(int64_t n) { return static_cast<int64_t>(engine_() % static_cast<uint64_t>(n)); }

  /// Small and large extents in any position, and sometimes 0.
  Dims extents() {
    Dims dims;
    for (int64_t rank = below(5); rank > 0; --rank) {
      const int64_t kind = below(12);
      dims.push_back(kind == 0 ? 1 : kind == 1 ? 0 : kind < 8 ? 1 + below(9) : 1 + below(70));
    }
    if (!dims.empty() && below(8) == 0) dims.back() = 100 + below(900);
    return dims;
  }

  /// `dims` with some extents replaced by 1, and perhaps without the first ones.
  Dims part_of(Dims dims) {
    if (below(3) == 0) return dims;
    for (int64_t& d : dims) {
      if (below(2) == 0) d = 1;
    }
    if (!dims.empty() && below(3) == 0) dims.erase(dims.begin());
    return dims;
  }

  Tensor tensor(DType dtype, const Dims& dims) {
    Tensor t = Tensor::empty(dtype, dims);
    tensor::visit_dtype(dtype, [&](auto zero) {
      using T = decltype(zero);
      for (T& v : t.mutable_data<T>()) {
        if constexpr (std::is_same_v<T, bool>)
          v = below(2) == 0;
        else
          v = static_cast<T>(static_cast<float>(below(9)) - (std::is_unsigned_v<T> ? 0 : 4));
        if constexpr (std::is_same_v<T, float>) {
          if (below(20) == 0) v = below(2) == 0 ? std::numeric_limits<T>::quiet_NaN() : -0.0f;
        }
        if constexpr (sizeof(T) == 8 && std::is_integral_v<T>) {
          if (below(10) == 0) v = std::numeric_limits<T>::max() - static_cast<T>(below(3));
        }
      }
    });
    return t;
  }

 private:
  std::mt19937 engine_;
};

void expect_same_bits(const std::string& op, const std::vector<Tensor>& in, size_t at_least) {
  const auto results = tests::run_kernels(op, {}, in);
  ASSERT_GE(results.size(), at_least) << op;
  const Tensor& want = results.back().out[0];
  for (const auto& r : results) {
    ASSERT_EQ(0, std::memcmp(r.out[0].raw(), want.raw(), static_cast<size_t>(want.bytes())))
        << op << " by " << r.kernel << " of " << tensor::to_string(in[0].dims()) << " "
        << tensor::to_string(in[1].dims()) << " " << tensor::name_of(in.back().dtype());
  }
}

bool has_vector_loops(const ElementwiseRow& row, DType dtype) {
  if (row.divides || row.row(dtype) == nullptr) return false;
  const auto typed = cpu::typed_op_of(row.function);
  return (typed && cpu::typed_tiles(*typed, dtype).vector_vector != nullptr) ||
         (dtype == DType::f32 && cpu::binary_op_of(row.function));
}

TEST(TypedElementwise, BinaryKernelsHaveTheBitsOfTheReference) {
  std::vector<std::pair<DType, std::string>> ops;
  for (DType dtype : {DType::f32, DType::i64, DType::i32, DType::u8, DType::boolean}) {
    for (const auto* rows : {&binary_rows(), &variadic_rows()}) {
      for (const ElementwiseRow& row : *rows) {
        if (has_vector_loops(row, dtype)) ops.emplace_back(dtype, row.name);
      }
    }
  }
  EXPECT_GE(ops.size(), 50u);
  Draw draw(3);
  for (int trial = 0; trial < 3000; ++trial) {
    const auto& [dtype, op] = ops[static_cast<size_t>(draw.below(static_cast<int64_t>(ops.size())))];
    const Dims dims = draw.extents();
    expect_same_bits(op, {draw.tensor(dtype, draw.part_of(dims)), draw.tensor(dtype, draw.part_of(dims))}, 2);
  }
}

// The compiler may let a result share the memory of an operand of its size.
TEST(TypedElementwise, TilesMayOverwriteAnOperand) {
  Draw draw(6);
  const cpu::TypedTile add = cpu::typed_tiles(cpu::BinaryOp::add_, DType::i32).vector_vector;
  for (int64_t n = 1; n < 300; ++n) {
    const Tensor a = draw.tensor(DType::i32, {n}), b = draw.tensor(DType::i32, {n});
    const Tensor c = draw.tensor(DType::boolean, {n});
    Tensor want = a.clone(), onto_a = a.clone(), onto_b = b.clone(), chosen = a.clone(), picked = a.clone();
    const size_t count = static_cast<size_t>(n);
    add(a.raw(), b.raw(), want.mutable_raw(), count);
    add(onto_a.raw(), b.raw(), onto_a.mutable_raw(), count);
    add(a.raw(), onto_b.raw(), onto_b.mutable_raw(), count);
    EXPECT_TRUE(onto_a.same_as(want) && onto_b.same_as(want)) << n;
    cpu::select_words({.c = c.raw(), .a = a.raw(), .b = b.raw(), .y = chosen.mutable_raw()}, count);
    cpu::select_words({.c = c.raw(), .a = picked.raw(), .b = b.raw(), .y = picked.mutable_raw()}, count);
    EXPECT_TRUE(picked.same_as(chosen)) << n;
  }
}

TEST(TypedElementwise, NegationHasTheBitsOfTheReference) {
  Draw draw(5);
  for (const int64_t n : {0, 1, 63, 64, 65, 1000, 70000}) {
    const auto results = tests::run_kernels("not", {}, {draw.tensor(DType::boolean, {n})});
    ASSERT_EQ(results.size(), 2u);
    EXPECT_TRUE(results[0].out[0].same_as(results[1].out[0])) << n;
  }
}

TEST(TypedElementwise, SelectionHasTheBitsOfTheReference) {
  Draw draw(4);
  for (int trial = 0; trial < 800; ++trial) {
    const DType types[] = {DType::f32, DType::i64, DType::boolean, DType::f16};
    const DType dtype = types[draw.below(4)];
    const Dims dims = draw.extents();
    expect_same_bits("where",
                     {draw.tensor(DType::boolean, draw.part_of(dims)), draw.tensor(dtype, draw.part_of(dims)),
                      draw.tensor(dtype, draw.part_of(dims))},
                     2);
  }
}

}  // namespace
}  // namespace trireme::ops
