// Times convolutions and their gradients with respect to x and w as the compiler would run them in training,
// with weights fed: conv_nhwc of one to three spatial axes, or conv_transpose.
//
// bench_conv_train --layer SPEC [--layer ...] [--threads T] [--rounds R] [--every]
// SPEC: n=8,c=64,oc=64,x=56x56,k=3x3 and where they differ from 1 or 0: s (stride), p (padding), d
// (dilation), each one number or one for each axis, g (groups), nchw=1 (x is planes), transposed=1,
// constant=1 (weights as inference has them, forward alone). --every:
// all kernels that take it. One JSON line per layer and direction: kernel, milliseconds (median), GFLOP/s by
// the op's own count, and the share of the multiply-add peak measured beside it. bench/conv_train.py runs it
// beside PyTorch.
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
  int64_t n = 1, c = 1, oc = 1, groups = 1;
  Ints x = {1}, k = {1}, stride, pad, dilation;  // for each spatial axis
  bool nchw = false, transposed = false, constant = false;

  /// Extents of the result.
  Ints y() const {
    Ints out;
    for (size_t i = 0; i < x.size(); ++i) {
      const int64_t reach = dilation[i] * (k[i] - 1) + 1;
      out.push_back(transposed ? (x[i] - 1) * stride[i] + reach - 2 * pad[i]
                               : (x[i] + 2 * pad[i] - reach) / stride[i] + 1);
    }
    return out;
  }
};

struct Options {
  std::vector<Layer> layers;
  int threads = 1, rounds = 9;
  bool every = false;  // every kernel that takes the node, not the first alone
};

constexpr double kLongRun = 2;  // seconds

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

/// Binds a kernel to the node and times it.
void time_kernel(const Options& o, const ir::OpDef& def, const ir::NodeView& node, const ir::Kernel& kernel,
                 const std::vector<Tensor>& in) {
  base::ThreadPool pool(o.threads);
  base::SharedCache packs;
  const ir::BoundKernel bound = kernel.prepare({node, packs, o.threads});
  Tensor workspace = Tensor::empty(tensor::DType::u8, {bound.workspace_bytes});
  Tensor out = Tensor::zeros(tensor::DType::f32, node.out_dims(0));
  const void* operands[2] = {in[0].raw(), in[1].raw()};
  void* results[1] = {out.mutable_raw()};
  cpu::CpuStream stream(pool);
  const bool alone = o.threads == 1;
  std::vector<double> times;
  const double first = now(alone);
  for (int round = 0; round < o.rounds + 1; ++round) {
    const double begin = now(alone);
    bound.run({operands, results, workspace.mutable_raw(), stream});
    const double took = now(alone) - begin;
    if (round > 0 || took > kLongRun) times.push_back(took);  // what takes seconds is not run again
    if (!times.empty() && now(alone) - first > kLongRun) break;
  }
  const double seconds = median(times), flop = ir::cost_of(def.schema, node).flop;
  std::printf(
      "{\"op\": \"%s\", \"kernel\": \"%s\", \"threads\": %d, \"ms\": %.3f, \"gflops\": %.1f, "
      "\"of_peak\": %.3f, \"workspace_mb\": %.1f}\n",
      def.schema.name.c_str(), kernel.name.c_str(), o.threads, 1e3 * seconds, 1e-9 * flop / seconds,
      flop / seconds / (peak() * o.threads), static_cast<double>(bound.workspace_bytes) / 1048576);
  std::fflush(stdout);
}

/// Times the first kernel of `op` that accepts the node, or all of them.
void time_op(const Options& o, const char* op, const ir::Attrs& attrs, const std::vector<Tensor>& in,
             bool constant = false) {
  const ir::OpDef& def = table().need(op);
  ir::NodeView node{
      .attrs = attrs, .in = {}, .out = {}, .known = {nullptr, nullptr}, .is_present = {true, true}};
  for (const Tensor& t : in) node.in.push_back(t.type());
  if (constant) node.known[1] = &in[1];
  node.out = ir::infer_types(def.schema, node);
  const ir::Kernel* first = choose_kernel(def, node, tensor::DeviceKind::cpu);
  if (first == nullptr) {  // runs as its expansion: simpler nodes, which a graph would hold
    std::printf("{\"op\": \"%s\", \"kernel\": \"none\"}\n", op);
    return;
  }
  for (const ir::Kernel& kernel : def.kernels) {
    const bool takes = kernel.on == tensor::DeviceKind::cpu && !(kernel.refuse && kernel.refuse(node));
    if (&kernel == first || (o.every && takes)) time_kernel(o, def, node, kernel, in);
  }
}

/// [n, c, spatial...] or [n, spatial..., c].
tensor::Dims image(int64_t n, int64_t c, const Ints& spatial, bool planes) {
  tensor::Dims dims{n};
  if (planes) dims.push_back(c);
  dims.insert(dims.end(), spatial.begin(), spatial.end());
  if (!planes) dims.push_back(c);
  return dims;
}

Tensor random_floats(const tensor::Dims& dims, double most) {
  return testing::random_tensor(tensor::DType::f32, dims, -most, most);
}

void time_transposed(const Options& o, const Layer& l, const ir::Attrs& attrs) {
  tensor::Dims weights{l.c, l.oc / l.groups};
  weights.insert(weights.end(), l.k.begin(), l.k.end());
  const Tensor x = random_floats(image(l.n, l.c, l.x, true), 1), w = random_floats(weights, 0.1);
  const Tensor dy = random_floats(image(l.n, l.oc, l.y(), true), 1);
  time_op(o, "conv_transpose", attrs, {x, w});
  time_op(o, "conv", attrs, {dy, w});
  ir::Attrs to_w = attrs;
  to_w.set("kernel_shape", l.k);
  time_op(o, "conv_grad_w", to_w, {dy, x});
}

void time_layer(const Options& o, const Layer& l) {
  Ints pads = l.pad;
  pads.insert(pads.end(), l.pad.begin(), l.pad.end());
  ir::Attrs attrs{{"strides", l.stride}, {"dilations", l.dilation}, {"pads", pads}, {"group", l.groups}};
  if (l.transposed) return time_transposed(o, l, attrs);
  tensor::Dims weights{l.oc, l.c / l.groups};
  weights.insert(weights.end(), l.k.begin(), l.k.end());
  const Tensor x = random_floats(image(l.n, l.c, l.x, l.nchw), 1), w = random_floats(weights, 0.1);
  const Tensor dy = random_floats(image(l.n, l.oc, l.y(), false), 1);
  if (l.nchw) attrs.set("input_layout", std::string("nchw"));
  time_op(o, "conv_nhwc", attrs, {x, w}, l.constant);
  if (l.constant) return;
  if (!l.nchw) {
    ir::Attrs to_x = attrs;
    to_x.set("in_shape", l.x);
    time_op(o, "conv_nhwc_grad_x", to_x, {dy, w});
  }
  attrs.set("kernel_shape", l.k);
  time_op(o, "conv_nhwc_grad_w", attrs, {x, dy});
}

/// Numbers between x: "56x56".
Ints numbers(const std::string& text) {
  Ints all;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('x', at), text.size());
    all.push_back(std::stoll(text.substr(at, end - at)));
    at = end + 1;
  }
  return all;
}

Layer layer_of(const std::string& spec) {
  Layer l;
  Ints stride{1}, pad{0}, dilation{1};
  for (size_t at = 0; at < spec.size();) {
    const size_t end = std::min(spec.find(',', at), spec.size()), equals = spec.find('=', at);
    base::require(equals < end, "not key=value: ", spec.substr(at, end - at));
    const std::string key = spec.substr(at, equals - at);
    const Ints value = numbers(spec.substr(equals + 1, end - equals - 1));
    base::require(!value.empty(), key, " has no number");
    const std::pair<const char*, Ints*> lists[] = {
        {"x", &l.x}, {"k", &l.k}, {"s", &stride}, {"p", &pad}, {"d", &dilation}};
    const std::pair<const char*, int64_t*> single[] = {
        {"n", &l.n}, {"c", &l.c}, {"oc", &l.oc}, {"g", &l.groups}};
    bool known = key == "nchw" || key == "transposed" || key == "constant";
    if (key == "constant") l.constant = value[0] != 0;
    if (key == "nchw") l.nchw = value[0] != 0;
    if (key == "transposed") l.transposed = value[0] != 0;
    for (const auto& [name, to] : lists) {
      if (key == name) *to = value, known = true;
    }
    for (const auto& [name, to] : single) {
      if (key == name) *to = value[0], known = true;
    }
    base::require(known, "unknown key ", key);
    at = end + 1;
  }
  const auto for_axes = [&](Ints given) {
    if (given.size() == 1) given.resize(l.x.size(), given[0]);
    return given;
  };
  l.k = for_axes(l.k), l.stride = for_axes(stride), l.pad = for_axes(pad), l.dilation = for_axes(dilation);
  return l;
}

Options parse(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; ++i) {
    const auto value = [&] { return i + 1 < argc ? argv[++i] : ""; };
    if (std::strcmp(argv[i], "--threads") == 0) {
      o.threads = std::atoi(value());
    } else if (std::strcmp(argv[i], "--rounds") == 0) {
      o.rounds = std::atoi(value());
    } else if (std::strcmp(argv[i], "--every") == 0) {
      o.every = true;
    } else if (std::strcmp(argv[i], "--layer") == 0) {
      o.layers.push_back(layer_of(value()));
    }
  }
  if (o.layers.empty())
    o.layers = {layer_of("n=32,x=56x56,c=64,oc=64,k=3,p=1"), layer_of("n=32,x=14x14,c=256,oc=256,k=3,p=1")};
  return o;
}

}  // namespace
}  // namespace trireme::ops

int main(int argc, char** argv) {
  using namespace trireme;
  try {
    const ops::Options options = ops::parse(argc, argv);
    for (const ops::Layer& layer : options.layers) ops::time_layer(options, layer);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
