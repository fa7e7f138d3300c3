// Times conv_nhwc and its gradients with respect to x and w as the compiler would run them in training, with
// weights fed.
//
// bench_conv_train --layer N,H,C,OC,K,STRIDE,PAD [--layer ...] [--threads T] [--rounds R] [--nchw]
// One JSON line per layer and direction: kernel, milliseconds (median), GFLOP/s by the op's own count, and
// the share of the multiply-add peak measured beside it. bench/conv_train.py runs it beside PyTorch.
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "backend/cpu/device/cpu_stream.h"
#include "backend/cpu/tiles/dense_kernels.h"
#include "ops/test_eval.h"

namespace trireme::ops {
namespace {

using tensor::Tensor;
using Ints = std::vector<int64_t>;

struct Layer {
  int64_t n, h, c, oc, k, stride, pad;
};

struct Options {
  std::vector<Layer> layers;
  int threads = 1, rounds = 9;
  bool nchw = false;
};

/// A single thread is timed by its own CPU time, which other load on the machine does not lengthen.
double now(bool alone) {
  timespec t;
  clock_gettime(alone ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

/// The flop per second of one core's register tiles on operands in its first-level cache.
double peak() {
  const cpu::DenseKernels& kernels = cpu::dense_kernels(cpu::best_isa());
  constexpr int64_t kDepth = 128;
  std::vector<float> a(kDepth * cpu::kRowSlots, 1e-3f), b(static_cast<size_t>(kDepth * kernels.panel), 1e-3f);
  std::vector<float> c(static_cast<size_t>(kernels.tile_rows * kernels.panel));
  cpu::GemmTile tile;
  tile.a = a.data();
  tile.b = b.data();
  tile.c = c.data();
  tile.k = kDepth;
  tile.ldc = tile.n = kernels.panel;
  std::vector<double> times;
  for (int round = 0; round < 5; ++round) {
    const double begin = now(true);
    for (int i = 0; i < 4000; ++i) kernels.gemm_packed[1][kernels.tile_rows - 1](tile);
    times.push_back(now(true) - begin);
  }
  return 4000.0 * 2 * kDepth * kernels.tile_rows * kernels.panel /
         *std::min_element(times.begin(), times.end());
}

/// Binds the first kernel of `op` that accepts the node, and times it.
void time_op(const Options& o, const char* op, const ir::Attrs& attrs, const std::vector<Tensor>& in,
             base::ThreadPool& pool) {
  const ir::OpDef& def = table().need(op);
  ir::NodeView node{
      .attrs = attrs, .in = {}, .out = {}, .known = {nullptr, nullptr}, .is_present = {true, true}};
  for (const Tensor& t : in) node.in.push_back(t.type());
  node.out = ir::infer_types(def.schema, node);
  const ir::Kernel* kernel = choose_kernel(def, node, tensor::DeviceKind::cpu);
  if (kernel == nullptr) return;
  base::SharedCache packs;
  const ir::BoundKernel bound = kernel->prepare({node, packs, o.threads});
  Tensor workspace = Tensor::empty(tensor::DType::u8, {bound.workspace_bytes});
  Tensor out = Tensor::zeros(tensor::DType::f32, node.out_dims(0));
  const void* operands[2] = {in[0].raw(), in[1].raw()};
  void* results[1] = {out.mutable_raw()};
  cpu::CpuStream stream(pool);
  const bool alone = o.threads == 1;
  std::vector<double> times;
  for (int round = 0; round < o.rounds + 1; ++round) {
    const double begin = now(alone);
    bound.run({operands, results, workspace.mutable_raw(), stream});
    if (round > 0) times.push_back(now(alone) - begin);
  }
  const double seconds = median(times), flop = ir::cost_of(def.schema, node).flop;
  const tensor::Dims d = in[0].dims();
  std::printf(
      "{\"op\": \"%s\", \"kernel\": \"%s\", \"threads\": %d, \"ms\": %.3f, \"gflops\": %.1f, \"of_peak\": "
      "%.3f, "
      "\"workspace_mb\": %.1f}\n",
      op, kernel->name.c_str(), o.threads, 1e3 * seconds, 1e-9 * flop / seconds,
      flop / seconds / (peak() * o.threads), static_cast<double>(bound.workspace_bytes) / 1048576);
  std::fflush(stdout);
}

void time_layer(const Options& o, const Layer& l, base::ThreadPool& pool) {
  const int64_t oh = (l.h + 2 * l.pad - l.k) / l.stride + 1;
  const bool nchw = o.nchw;
  const Tensor x = testing::random_tensor(
      tensor::DType::f32, nchw ? tensor::Dims{l.n, l.c, l.h, l.h} : tensor::Dims{l.n, l.h, l.h, l.c}, -1, 1);
  const Tensor w = testing::random_tensor(tensor::DType::f32, {l.oc, l.c, l.k, l.k}, -0.1, 0.1);
  const Tensor dy = testing::random_tensor(tensor::DType::f32, {l.n, oh, oh, l.oc}, -1, 1);
  ir::Attrs attrs{{"strides", Ints{l.stride, l.stride}}, {"pads", Ints{l.pad, l.pad, l.pad, l.pad}}};
  if (nchw) attrs.set("input_layout", std::string("nchw"));
  time_op(o, "conv_nhwc", attrs, {x, w}, pool);
  if (!nchw) {
    ir::Attrs to_x = attrs;
    to_x.set("in_shape", Ints{l.h, l.h});
    time_op(o, "conv_nhwc_grad_x", to_x, {dy, w}, pool);
  }
  attrs.set("kernel_shape", Ints{l.k, l.k});
  time_op(o, "conv_nhwc_grad_w", attrs, {x, dy}, pool);
}

Options parse(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; ++i) {
    const auto value = [&] { return i + 1 < argc ? argv[++i] : ""; };
    if (std::strcmp(argv[i], "--threads") == 0) {
      o.threads = std::atoi(value());
    } else if (std::strcmp(argv[i], "--rounds") == 0) {
      o.rounds = std::atoi(value());
    } else if (std::strcmp(argv[i], "--nchw") == 0) {
      o.nchw = true;
    } else if (std::strcmp(argv[i], "--layer") == 0) {
      Layer l{};
      long v[7] = {};
      if (std::sscanf(value(), "%ld,%ld,%ld,%ld,%ld,%ld,%ld", &v[0], &v[1], &v[2], &v[3], &v[4], &v[5],
                      &v[6]) == 7)
        l = {v[0], v[1], v[2], v[3], v[4], v[5], v[6]};
      o.layers.push_back(l);
    }
  }
  if (o.layers.empty())
    o.layers = {{32, 56, 64, 64, 3, 1, 1}, {32, 28, 128, 128, 3, 1, 1}, {32, 14, 256, 256, 3, 1, 1}};
  return o;
}

}  // namespace
}  // namespace trireme::ops

int main(int argc, char** argv) {
  using namespace trireme;
  const ops::Options options = ops::parse(argc, argv);
  base::ThreadPool pool(options.threads);
  for (const ops::Layer& layer : options.layers) ops::time_layer(options, layer, pool);
  return 0;
}
