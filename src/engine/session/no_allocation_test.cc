// Running a program allocates no memory: this test binary counts every malloc on every thread.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>

#include "base/rng.h"
#include "comm/local.h"
#include "comm/mesh.h"
#include "engine/decode/decode_session.h"
#include "engine/session/session.h"
#include "model/zoo/llama.h"
#include "ops/table.h"
#include "runtime/executor.h"
#include "runtime/open_device.h"
#include "tests/test_device.h"

// Sanitizers replace the allocator, so runs are made but allocations are not counted.
#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define TRIREME_COUNTS_ALLOCATIONS 1
namespace {
std::atomic<int64_t> allocations{0};
}
extern "C" {
void* __libc_malloc(size_t bytes);
void* __libc_calloc(size_t count, size_t bytes);
void* __libc_realloc(void* old, size_t bytes);
void* __libc_memalign(size_t alignment, size_t bytes);

void* malloc(size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_malloc(bytes);
}
void* calloc(size_t count, size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_calloc(count, bytes);
}
void* realloc(void* old, size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_realloc(old, bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_memalign(alignment, bytes);
}
void* memalign(size_t alignment, size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_memalign(alignment, bytes);
}
int posix_memalign(void** out, size_t alignment, size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  *out = __libc_memalign(alignment, bytes);
  return *out == nullptr ? 12 : 0;
}
}
#endif

namespace trireme::engine {
namespace {

using tensor::Tensor;

int64_t count() {
#ifdef TRIREME_COUNTS_ALLOCATIONS
  return allocations.load();
#else
  return 0;
#endif
}

struct AllocCase {
  const char* name;
  const char* body;  ///< the lines of the graph
};

// One graph per family of kernels, with sizes large enough to use several threads.
constexpr AllocCase kAllocCases[] = {
    {"elementwise", R"(
  %0 = input "x" : f32[64,1000]
  %1 = input "z" : f32[1000]
  %2 = add(%0, %1)
  %3 = gelu(%2)
  %4 = exp(%3)
  %5 = pow(%4, %1)
  %6 = greater(%5, %0)
  %7 = where(%6, %0, %5)
  return %7)"},
    {"matmul", R"(
  %0 = input "x" : f32[2,65,128]
  %1 = input "z" : f32[2,128,70]
  %2 = param "w" : f32[128,256]#seed=1
  %3 = matmul(%0, %2)
  %4 = relu(%3)
  %5 = matmul(%0, %1)
  return %4, %5)"},
    {"gemm", R"(
  %0 = input "x" : f32[1,128]
  %1 = param "w" : f32[256,128]#seed=1
  %2 = param "b" : f32[256]#seed=2
  %3 = gemm(%0, %1, %2) {transB=1}
  %4 = input "a" : f32[30,40]
  %5 = gemm(%4, %4) {transA=1, alpha=0.5}
  return %3, %5)"},
    {"convolution", R"(
  %0 = input "x" : f32[1,3,33,33]
  %1 = param "w" : f32[16,3,3,3]#seed=1
  %2 = param "dw" : f32[16,1,3,3]#seed=2
  %3 = param "pw" : f32[32,16,1,1]#seed=3
  %10 = param "gw" : f32[32,8,3,3]#seed=4
  %4 = conv(%0, %1) {pads=[1, 1, 1, 1], strides=[2, 2]}
  %5 = relu(%4)
  %6 = conv(%5, %2) {group=16, pads=[1, 1, 1, 1]}
  %7 = conv(%6, %3)
  %11 = conv(%7, %10) {group=4, pads=[1, 1, 1, 1]}
  %8 = max_pool(%11) {kernel_shape=[2, 2], strides=[2, 2]}
  %9 = global_average_pool(%8)
  return %9)"},
    {"convolution_planes", R"(
  %0 = input "x" : f32[2,4,50]
  %1 = input "w" : f32[8,4,3]
  %2 = conv(%0, %1)
  %3 = param "t" : f32[8,4,3]#seed=1
  %4 = conv_transpose(%2, %3)
  return %4)"},
    {"norms", R"(
  %0 = input "x" : f32[40,256]
  %1 = param "s" : f32[256]#seed=1
  %2 = param "b" : f32[256]#seed=2
  %3 = layer_norm(%0, %1, %2) {axis=-1}
  %4 = softmax(%3) {axis=-1}
  %5 = softmax(%4) {axis=0}
  %6 = rms_norm(%5, %1) {axis=-1}
  return %6)"},
    {"reductions", R"(
  %0 = input "x" : f32[40,25,16]
  %1 = const : i64[1]{1}
  %2 = const : i64[2]{0, 2}
  %3 = reduce_sum(%0, %1)
  %4 = reduce_max(%0, %2)
  %5 = reduce_mean(%0)
  %6 = arg_max(%0) {axis=1}
  %8 = const : i64[]{1}
  %7 = cum_sum(%0, %8)
  return %3, %4, %5, %6, %7)"},
    {"shapes", R"(
  %0 = input "x" : f32[4,30,40]
  %1 = const : i64[3]{1, 2, 3}
  %2 = const : i64[3]{4, 25, 40}
  %3 = transpose(%0) {perm=[2, 0, 1]}
  %4 = concat(%0, %0) {axis=1}
  %5 = slice(%0, %1, %2)
  %6 = gather(%0, %1) {axis=1}
  %7, %8 = split(%0) {axis=2, num_outputs=2}
  return %3, %4, %5, %6, %7, %8)"},
    {"attention", R"(
  %0 = input "q" : f32[2,20,4,16]
  %1 = input "k" : f32[2,20,4,16]
  %2 = input "v" : f32[2,20,4,16]
  %3 = attention_bsnd(%0, %1, %2)
  return %3)"},
    {"integer", R"(
  %0 = input "x" : f32[1,8,9,9]
  %1 = const : f32[]{0.02}
  %2 = const : u8[]{128}
  %3 = const : i8[16,8,3,3]#seed=1
  %4 = const : f32[]{0.01}
  %9 = quantize_linear(%0, %1, %2)
  %10 = dequantize_linear(%9, %1, %2)
  %11 = dequantize_linear(%3, %4)
  %12 = conv(%10, %11) {pads=[1, 1, 1, 1]}
  %13 = relu(%12)
  %14 = quantize_linear(%13, %1, %2)
  %15 = dequantize_linear(%14, %1, %2)
  return %15)"},
    {"recurrent", R"(
  %0 = input "x" : f32[6,2,8]
  %1 = param "w" : f32[1,64,8]#seed=1
  %2 = param "r" : f32[1,64,16]#seed=2
  %3 = lstm(%0, %1, %2) {hidden_size=16}
  return %3)"},
    {"sorting", R"(
  %0 = input "x" : f32[20,100]
  %1 = const : i64[1]{5}
  %2, %3 = top_k(%0, %1)
  return %2, %3)"},
    {"images", R"(
  %0 = input "x" : f32[1,3,16,16]
  %1 = const : f32[4]{1, 1, 2, 2}
  %2 = resize(%0, _, %1) {mode="linear"}
  return %2)"},
    {"gated_recurrence", R"(
  %0 = input "x" : f32[6,2,8]
  %1 = param "w" : f32[1,48,8]#seed=1
  %2 = param "r" : f32[1,48,16]#seed=2
  %3 = param "rw" : f32[1,16,8]#seed=1
  %4 = param "rr" : f32[1,16,16]#seed=2
  %5 = gru(%0, %1, %2) {hidden_size=16}
  %6 = rnn(%0, %3, %4) {hidden_size=16}
  return %5, %6)"},
    {"group_norms", R"(
  %0 = input "x" : f32[2,8,9,9]
  %1 = param "s" : f32[8]#seed=1
  %2 = group_norm(%0, %1, %1) {num_groups=2}
  %3 = instance_norm(%2, %1, %1)
  %4 = lrn(%3) {size=3}
  %5 = lp_norm(%4)
  %6 = mean_variance_norm(%5)
  %7 = batch_norm(%6, %1, %1, %1, %1)
  return %7)"},
    {"moves", R"(
  %0 = input "x" : f32[2,8,6,6]
  %1 = const : i64[8]{0, 0, 1, 1, 0, 0, 2, 2}
  %2 = const : i64[4]{1, 2, 1, 1}
  %3 = const : i64[1,2]{1, 3}
  %4 = input "u" : f32[1,6,6]
  %5 = pad(%0, %1) {mode="reflect"}
  %6 = tile(%0, %2)
  %7 = scatter_nd(%0, %3, %4)
  %8 = gather_nd(%0, %3)
  %9 = depth_to_space(%0) {blocksize=2}
  %10 = space_to_depth(%0) {blocksize=2}
  %11 = trilu(%0)
  %12 = const : i64[4]{2, 8, 6, 6}
  %13 = expand(%4, %12)
  return %5, %6, %7, %8, %9, %10, %11, %13)"},
    {"other_types", R"(
  %0 = input "x" : f32[64,64]
  %1 = cast(%0) {to=11}
  %2 = matmul(%1, %1)
  %3 = cast(%0) {to=10}
  %4 = matmul(%3, %3)
  %5 = cast(%0) {to=7}
  %6 = add(%5, %5)
  %7 = cast(%4) {to=1}
  %8 = softmax(%4)
  %9 = is_nan(%0)
  %10 = not(%9)
  return %2, %6, %7, %8, %10)"},
    {"integer_products", R"(
  %0 = input "x" : f32[16,32]
  %1 = const : u8[32,24]#seed=1
  %2, %3, %4 = dynamic_quantize_linear(%0)
  %5 = matmul_integer(%2, %1, %4)
  %6 = const : f32[]{0.1}
  %7 = const : u8[]{7}
  %8 = qlinear_matmul(%2, %3, %4, %1, %6, %7, %6, %7)
  return %5, %8)"},
    {"einsum_and_spectra", R"(
  %0 = input "x" : f32[4,8,16]
  %1 = input "z" : f32[4,16,5]
  %2 = einsum(%0, %1) {equation="bij,bjk->bik"}
  %4 = input "m" : f32[3,5,5]
  %3 = det(%4)
  return %2, %3)"},
    {"more_images", R"(
  %0 = input "x" : f32[1,3,16,16]
  %1 = const : f32[4]{1, 1, 0.5, 0.5}
  %2 = resize(%0, _, %1) {mode="cubic"}
  %3 = resize(%0, _, %1) {mode="nearest"}
  %4 = input "grid" : f32[1,4,4,2]
  %5 = grid_sample(%0, %4)
  %6 = input "rois" : f32[2,4]
  %7 = const : i64[2]{0, 0}
  %8 = roi_align(%0, %6, %7) {output_height=2, output_width=2}
  return %2, %3, %5, %8)"},
    {"fallback_pools", R"(
  %0 = input "x" : f32[1,3,8,8,8]
  %1 = max_pool(%0) {kernel_shape=[2, 2, 2]}
  %2 = average_pool(%0) {kernel_shape=[2, 2, 2]}
  %3 = param "w" : f32[4,3,2,2,2]#seed=1
  %4 = conv(%0, %3)
  return %1, %2, %4)"},
    // Large enough to run in slices or row by row.
    {"batch_in_slices", R"(
  %0 = input "x" : f32[32,8,40,40]
  %1 = param "w" : f32[32,8,3,3]#seed=1
  %2 = param "v" : f32[32,32,3,3]#seed=2
  %3 = conv(%0, %1) {pads=[1, 1, 1, 1]}
  %4 = relu(%3)
  %5 = conv(%4, %2) {pads=[1, 1, 1, 1]}
  %6 = sigmoid(%5)
  %7 = global_average_pool(%6)
  return %7)"},
};

Tensor random_tensor(const tensor::TensorType& type) {
  Tensor t = Tensor::zeros(type.dtype, type.shape.to_dims());
  base::Rng rng(3);
  for (float& v : t.mutable_data<float>()) v = static_cast<float>(rng.uniform());
  return t;
}

/// The case, the number of threads, and the device.
class NoAllocation : public testing::TestWithParam<std::tuple<size_t, int, const char*>> {};

TEST_P(NoAllocation, WhileAProgramRuns) {
  const auto [which, threads, device] = GetParam();
  if (device == std::string("emulated") && tests::cuda_device() != "emulated")
    GTEST_SKIP() << "allocations of the CUDA runtime are not counted";
  const std::string body = kAllocCases[which].body;
  const auto model =
      std::make_shared<const PreparedModel>(ir::parse("graph \"g\"" + body + "\n", ops::table()));
  Session session(model, {.device = device, .threads = threads});
  std::vector<Tensor> in;
  for (ir::ValueId id : session.graph().inputs()) in.push_back(random_tensor(session.graph().type(id)));
  std::vector<Tensor> out = session.run(in);
  session.run_into(in, out);  // the launches of a device are recorded here
  const int64_t before = count();
  for (int i = 0; i < 3; ++i) session.run_into(in, out);
  const int64_t allocated = count() - before;
  std::vector<tensor::Dims> shapes;
  for (const Tensor& t : in) shapes.push_back(t.dims());
  const compile::Program& program = session.prepare(shapes);
  // A program that is not recorded repeats its launches, for which some launchers collect arguments in
  // vectors.
  if (!program.host_operators().empty()) return;
  EXPECT_EQ(allocated, 0) << compile::print_steps(program);
}

std::string name_of_case(const testing::TestParamInfo<std::tuple<size_t, int, const char*>>& one) {
  return std::string(kAllocCases[std::get<0>(one.param)].name) + "_" +
         std::to_string(std::get<1>(one.param)) + "_threads_" + std::get<2>(one.param);
}

INSTANTIATE_TEST_SUITE_P(Programs, NoAllocation,
                         testing::Combine(testing::Range<size_t>(0, std::size(kAllocCases)),
                                          testing::Values(1, 4), testing::Values("cpu")),
                         name_of_case);
INSTANTIATE_TEST_SUITE_P(Devices, NoAllocation,
                         testing::Combine(testing::Range<size_t>(0, std::size(kAllocCases)),
                                          testing::Values(2), testing::Values("emulated")),
                         name_of_case);

// Buckets, packed parts and a state, with collectives in line and aside of the computation.
constexpr const char* kRanksBody = R"(graph "ranks"
  mesh dp=2
  %0 = input "x" : f32[64,64]
  %1 = state "s" : f32[64,64]
  %2 = matmul(%0, %0)
  %3 = tanh(%2)
  %4, %5 = all_reduce(%2, %3) {axes="dp", parts=[2]}
  %6 = matmul(%3, %3)
  %7 = tanh(%6)
  %8 = reduce_scatter(%7) {axes="dp", parts=[2], index=[0], dim=1}
  %9 = matmul(%7, %7)
  %10 = all_gather(%8) {axes="dp", parts=[2], index=[0], dim=1}
  %11 = all_to_all(%9) {axes="dp", parts=[2], index=[0], split=0, concat=1}
  %12 = gather_into(%1, %8) {axes="dp", parts=[2], index=[0], dim=1}
  %13 = add(%4, %5)
  %14 = add(%13, %9)
  %15 = relu(%12)
  return %14 "a", %10 "b", %11 "c", %15 "d"
)";

TEST(NoAllocation, WhileRanksMeet) {
  for (const bool overlap : {false, true}) {
    std::atomic<int64_t> allocated{0};
    comm::LocalWorld world(2);
    world.run([&](comm::Communicator& all) {
      comm::Mesh mesh(all, tensor::MeshShape({{"dp", 2}}));
      base::ThreadPool pool(1);
      const auto device = runtime::open_device("cpu");
      const auto stream = device->open_stream(pool);
      base::SharedCache packs;
      ir::Graph graph = ir::parse(kRanksBody, ops::table());
      const auto program =
          std::make_shared<const compile::Program>(compile::compile(graph, {.overlap = overlap}, packs));
      Tensor state = Tensor::zeros(tensor::DType::f32, {64, 64}),
             x = Tensor::zeros(tensor::DType::f32, {64, 64});
      runtime::Executor executor(program, {state.mutable_raw()}, &mesh);
      const auto arena = device->allocate(program->memory.arena_bytes);
      executor.bind_arena(arena.get());
      std::vector<Tensor> results;
      std::vector<void*> out;
      for (const compile::SlotId id : program->outputs)
        results.push_back(Tensor::zeros(program->slot(id).dtype, program->slot(id).dims));
      for (Tensor& t : results) out.push_back(t.mutable_raw());
      const void* in[]{x.raw()};
      for (int i = 0; i < 3; ++i) executor.run(in, out, *stream);
      all.barrier();
      const int64_t before = count();
      all.barrier();
      for (int i = 0; i < 20; ++i) executor.run(in, out, *stream);
      all.barrier();
      if (all.rank() == 0) allocated = count() - before;
      all.barrier();
    });
    EXPECT_EQ(allocated.load(), 0) << (overlap ? "beside the computation" : "in line");
  }
}

TEST(NoAllocation, WhileSequencesDecode) {
  model::zoo::LlamaConfig c;
  c.vocabulary = 64;
  c.width = 64;
  c.layers = 2;
  c.heads = 4;
  c.kv_heads = 2;
  c.inner = 96;
  model::RandomParams params(1);
  const model::Model model = model::zoo::llama(c, params);
  DecodeSession session(std::make_shared<DecodeModel>(model.graph), {.threads = 3, .max_sequences = 4});
  const std::vector<int64_t> tokens(40, 7);
  const auto all = std::span(tokens);
  // A prompt next to decoding sequences, then all decode, while pages are taken and returned.
  const auto round = [&] {
    const SequenceId ids[] = {session.open(), session.open(), session.open()};
    for (size_t i = 0; i < 20; ++i) {
      const DecodePiece pieces[] = {
          {ids[0], all.first(i == 0 ? 40 : 1)}, {ids[1], all.first(1)}, {ids[2], all.first(1)}};
      session.step(pieces);
    }
    for (SequenceId id : ids) session.close(id);
  };
  round();
  const int64_t before = count();
  for (int i = 0; i < 3; ++i) round();
  EXPECT_EQ(count() - before, 0);
}

TEST(NoAllocation, CountsAtAll) {
#ifdef TRIREME_COUNTS_ALLOCATIONS
  const int64_t before = count();
  const Tensor t = Tensor::zeros(tensor::DType::f32, {3});
  EXPECT_GT(count(), before);
#else
  GTEST_SKIP() << "this build's allocator cannot be counted";
#endif
}

}  // namespace
}  // namespace trireme::engine
