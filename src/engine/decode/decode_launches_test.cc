// The number of launches of a decoding step on a device, counted on the emulated device: a fixed number for
// each additional layer. Also tests that fusion changes results only by rounding.
#include <gtest/gtest.h>

#include <cmath>

#include "engine/decode/test_decoding.h"
#include "lower/inference.h"
#include "passes/decode/decode.h"
#include "passes/lists/lists.h"
#include "passes/precision/weights.h"
#include "runtime/executor.h"
#include "tests/test_device.h"
#include "tests/tiny_llama.h"

namespace trireme::engine {
namespace {

using passes::Precision;
using tensor::DType;
using tensor::Tensor;

constexpr int64_t kLaunchVocabulary = 97, kPages = 40;

model::Model llama_of(int64_t layers) {
  model::zoo::LlamaConfig c = tests::tiny_llama_config();
  c.vocabulary = kLaunchVocabulary;
  c.positions = 160;
  c.width = 64;
  c.layers = layers;
  c.inner = 96;
  c.is_tied = false;
  return tests::tiny_llama(c, 3);
}

struct Way {
  Precision precision = Precision::f32;
  DType cache = DType::f32;
  int bits = 0;  ///< bits of stored weights; 0: original type
  bool fuses = true;
};

struct Step {
  int64_t launches = 0;
  std::vector<float> logits;
  std::vector<std::string> listing;
};

template <class T>
Tensor of(const tensor::Dims& dims, const std::vector<T>& values) {
  return Tensor::from<T>(dims, std::span<const T>(values));
}

/// A step with one token for each of `sequences` sequences of 20 tokens, on an emulated device.
Step step(int64_t layers, int64_t sequences, const Way& way) {
  const auto device = cuda::open_emulated();
  base::ThreadPool pool(1);
  base::SharedCache packs;
  passes::DecodeGraph form = passes::decode_form(
      llama_of(layers).graph, {.page_type = way.cache, .pages = kPages, .page_tokens = 16});
  passes::run_passes(passes::prepare_passes(), form.graph);
  if (way.bits != 0) {
    passes::WeightOptions stored;
    stored.weights = way.bits == 8 ? passes::WeightBits::int8 : passes::WeightBits::int4;
    stored.weight_group = 32;
    stored.least_elements = 0;
    passes::store_weights(form.graph, stored);
  }
  const auto most = form.options.most_pages, n = sequences;
  const ir::Graph bound =
      passes::bind_shapes(form.graph, {{1, n}, {1, n}, {n}, {n, most}, {n}, {n + 1}, {n}});
  lower::InferenceTarget target{.compile = {.on = tensor::DeviceKind::cuda, .device = device.get()},
                                .passes = {.off = {"projections"}},
                                .strategy = {.precision = {.compute = way.precision}}};
  if (!way.fuses) target.passes.off.push_back("decode_steps");
  const auto program = lower::lower_inference(bound, target, packs, form.graph).program;
  const auto stream = dynamic_cast<cuda::CudaDevice&>(*device).open_stream(pool, cuda::StreamRole::compute);
  std::vector<std::shared_ptr<void>> states;
  std::vector<void*> at;
  for (const compile::SlotId id : program->states) {
    const Tensor zeros = Tensor::zeros(DType::u8, {program->slot(id).bytes});
    states.push_back(device->allocate(zeros.bytes()));
    stream->upload(states.back().get(), zeros.raw(), zeros.bytes());
    at.push_back(states.back().get());
  }
  stream->synchronize();
  runtime::Executor executor(program, at, nullptr, runtime::bind_device(*device, pool, packs, false));
  const std::shared_ptr<void> arena = device->allocate(executor.arena_bytes());
  executor.bind_arena(arena.get());
  std::vector<int64_t> ids, positions, last;
  std::vector<int32_t> slots, table, lengths, starts{0};
  for (int64_t s = 0; s < n; ++s) {
    ids.push_back(7 * s % kLaunchVocabulary), positions.push_back(19), last.push_back(s);
    for (int64_t p = 0; p < most; ++p) table.push_back(static_cast<int32_t>(p < 2 ? 2 * s + p : -1));
    slots.push_back(static_cast<int32_t>(16 * (2 * s + 1) + 3));
    lengths.push_back(20), starts.push_back(static_cast<int32_t>(s + 1));
  }
  const std::vector<Tensor> in{of<int64_t>({1, n}, ids),  of<int64_t>({1, n}, positions),
                               of<int32_t>({n}, slots),   of<int32_t>({n, most}, table),
                               of<int32_t>({n}, lengths), of<int32_t>({n + 1}, starts),
                               of<int64_t>({n}, last)};
  std::vector<const void*> addresses;
  for (const Tensor& t : in) addresses.push_back(t.raw());
  Step made{.logits = std::vector<float>(static_cast<size_t>(n * kLaunchVocabulary))};
  void* out[] = {made.logits.data()};
  const int64_t before = stream->launches();
  executor.run(addresses, out, *stream);
  made.launches = stream->launches() - before;
  for (const compile::Step& s : program->steps)
    made.listing.push_back(
        base::concat(s.op == nullptr ? "copy" : s.op->schema.name, " by ", s.kernel, " ", s.attrs));
  return made;
}

class DecodeLaunches : public testing::TestWithParam<Way> {
 protected:
  void SetUp() override {
    if (cuda::has_toolkit()) GTEST_SKIP() << "launches are counted on the stand-in";
  }
};

TEST_P(DecodeLaunches, OfALayerAreAtMostSeven) {
  for (const int64_t sequences : {1, 4, 8}) {
    const Step two = step(2, sequences, GetParam()), three = step(3, sequences, GetParam());
    std::string listing;
    for (const std::string& line : three.listing) listing += line + "\n";
    EXPECT_LE(three.launches - two.launches, 7) << sequences << " sequences:\n" << listing;
    // Launches outside of the layers: tokens, embedding, the last norm with the head, casts; and those that
    // only the first layer needs, as the rows of the embedding are f32.
    EXPECT_LE(two.launches - 2 * (three.launches - two.launches), 8) << listing;
    Way apart = GetParam();
    apart.fuses = false;
    const Step plain = step(2, sequences, apart);
    EXPECT_GT(plain.launches, two.launches + 10);
    EXPECT_LT(difference(two.logits, plain.logits), GetParam().cache == DType::f32 ? 1e-4 : 0.05);
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, DecodeLaunches,
                         testing::Values(Way{}, Way{Precision::bf16, DType::bf16},
                                         Way{Precision::f16, DType::f16}, Way{Precision::f32, DType::f32, 8},
                                         Way{Precision::f32, DType::bf16, 4}));

}  // namespace
}  // namespace trireme::engine
