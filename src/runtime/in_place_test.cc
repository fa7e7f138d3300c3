// Results that take the bytes of their operands: every elementwise operator, over types and broadcast shapes,
// computes in a program what it computes alone.
#include <gtest/gtest.h>

#include <cstring>

#include "base/error.h"
#include "ops/table.h"
#include "ops/test_eval.h"
#include "runtime/executor.h"
#include "runtime/open_device.h"

namespace trireme::runtime {
namespace {

using tensor::Dims;
using tensor::DType;
using tensor::Tensor;

constexpr DType kTypes[] = {DType::f32, DType::f64, DType::f16, DType::bf16,   DType::i8,
                            DType::u8,  DType::i32, DType::i64, DType::boolean};
/// Bytes of a result of another width are those of an operand that is spread over it: 1 x 256 floats over 4
/// rows, 1 x 256 halves over 2 rows, 1 x 256 doubles over 8 rows.
constexpr int64_t kColumns = 256;
constexpr int64_t kRows[] = {1, 2, 4, 8};

Tensor operand(DType type, int64_t rows, int64_t columns, uint64_t seed) {
  const bool is_real = type == DType::f32 || type == DType::f64;
  const Tensor values =
      ops::testing::random_tensor(is_real ? type : DType::f32, {rows, columns}, 0, 1.9, seed);
  return ops::testing::as_type(values, type);
}

Tensor transposed(const Tensor& t) { return ops::testing::run("transpose", {t})[0]; }

/// The op on operands that die in it, in the middle of a program; empty where it does not take them.
std::optional<Tensor> in_program(const ir::OpDef& op, const std::vector<Tensor>& operands) {
  ir::Graph g;
  std::vector<ir::ValueId> in;
  for (size_t i = 0; i < operands.size(); ++i) {
    const Dims& dims = operands[i].dims();
    const ir::ValueId x = g.add_input("x" + std::to_string(i), {operands[i].dtype(), {dims[1], dims[0]}});
    in.push_back(g.add1(ops::table().need("transpose"), {x}));
  }
  base::SharedCache packs;
  std::shared_ptr<const compile::Program> program;
  Dims result;
  DType type = DType::f32;
  try {
    const ir::ValueId y = g.add(op, in, {}, 1, "y")[0];
    result = g.type(y).shape.to_dims();
    type = g.type(y).dtype;
    if (result.size() != 2) return std::nullopt;
    g.add_output(g.add1(ops::table().need("transpose"), {y}), "y");
    g.sort();
    program = std::make_shared<const compile::Program>(compile::compile(g, {.threads = 2}, packs));
  } catch (const base::Error&) {
    return std::nullopt;
  }
  base::ThreadPool pool(2);
  const std::unique_ptr<tensor::Device> device = open_device("cpu");
  const std::unique_ptr<tensor::Stream> stream = device->open_stream(pool);
  Executor executor(program);
  const std::shared_ptr<void> arena = device->allocate(program->memory.arena_bytes);
  executor.bind_arena(arena.get());
  std::vector<Tensor> turned;
  std::vector<const void*> inputs;
  for (const Tensor& t : operands) turned.push_back(transposed(t));
  for (const Tensor& t : turned) inputs.push_back(t.raw());
  Tensor y = Tensor::empty(type, {result[1], result[0]});
  void* out[]{y.mutable_raw()};
  executor.run(inputs, out, *stream);
  return transposed(y);
}

TEST(InPlace, ElementwiseOperatorsAreWhatTheyAreAlone) {
  size_t tried = 0;
  for (const ir::OpDef& op : ops::table().all()) {
    const ir::OpSchema& schema = op.schema;
    if (!ir::is_elementwise(schema) || schema.is_random || schema.is_collective || schema.is_view) continue;
    const size_t count =
        std::min<size_t>(std::max<size_t>(schema.min_in, std::min<size_t>(2, schema.max_in)), 3);
    for (const DType type : kTypes) {
      for (const int64_t rows : kRows) {
        for (size_t spread = 0; spread < count; ++spread) {
          std::vector<Tensor> in;
          for (size_t i = 0; i < count; ++i) {
            const DType own = schema.name == "where" && i == 0 ? DType::boolean : type;
            const bool is_row = i == spread;
            in.push_back(operand(own, is_row ? 1 : rows, is_row || i > 1 ? kColumns : 1, 7 + i));
          }
          const std::optional<Tensor> got = in_program(op, in);
          if (!got) continue;
          base::ThreadPool pool(2);
          const Tensor want = ops::evaluate(op, {}, in, 1, pool)[0];
          ASSERT_EQ(std::memcmp(got->raw(), want.raw(), static_cast<size_t>(want.bytes())), 0)
              << schema.name << " of " << tensor::name_of(type) << ", " << rows << " rows, operand "
              << spread;
          ++tried;
        }
      }
    }
  }
  EXPECT_GT(tried, 1000u);
}

}  // namespace
}  // namespace trireme::runtime
