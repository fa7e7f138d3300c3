// Measures how fast the loader delivers samples, and what each part of it costs.
#include <benchmark/benchmark.h>

#include <cstdlib>

#include "data/loader/augment.h"
#include "data/loader/open_dataset.h"
#include "data/dataset/permutation.h"

namespace {

using namespace trireme;

// $TRIREME_BENCH_DATA names another data set; Debian's Fashion-MNIST is the default.
data::DatasetPtr bench_data() {
  const char* path = std::getenv("TRIREME_BENCH_DATA");
  return data::open_dataset({.path = {path == nullptr ? "fashion-mnist" : path}});
}

void batches(benchmark::State& state, const data::AugmentOptions& augment) {
  const data::DatasetPtr set = bench_data();
  base::SystemClock clock;
  data::Loader loader(
      set, {.batch = 64, .workers = static_cast<int>(state.range(0)), .fields = {"image", "label"}},
      data::image_transform(augment), clock);
  for (auto _ : state) benchmark::DoNotOptimize(loader.next());
  state.SetItemsProcessed(state.iterations() * 64);
}

void plain(benchmark::State& state) { batches(state, {}); }
void augmented(benchmark::State& state) {
  batches(state, {.crop = 28, .random_crop = true, .padding = 2, .flip = true});
}
// Typical transforms for sets of photographs.
void resized_crops(benchmark::State& state) {
  batches(state, {.crop = 224, .random_resized_crop = 0.08, .flip = true, .normalize = "imagenet"});
}
void centre_crops(benchmark::State& state) {
  batches(state, {.resize = 256, .crop = 224, .normalize = "imagenet"});
}

void permutation(benchmark::State& state) {
  const data::Permutation order(1, 2, state.range(0));
  int64_t at = 0;
  for (auto _ : state) benchmark::DoNotOptimize(order(at++ % state.range(0)));
}

BENCHMARK(plain)->Arg(0)->Arg(2)->UseRealTime();
BENCHMARK(augmented)->Arg(0)->Arg(2)->UseRealTime();
BENCHMARK(resized_crops)->Arg(0)->Arg(2)->UseRealTime();
BENCHMARK(centre_crops)->Arg(0)->UseRealTime();
BENCHMARK(permutation)->Arg(60000)->Arg(1'281'167)->Arg(int64_t{1} << 33);

}  // namespace
