// Measures our dense kernels and oneDNN in turn on the layers of real models, as shares of the measured peak.
//
// bench_gemm [--set floor|minilm|resnet|mobilenet|training|all] [--threads T] [--batch B] [--rounds R]
//   [--isa NAME] [--type f32|int8|bf16]
// Run with OMP_NUM_THREADS=T OMP_PROC_BIND=true. Prints one JSON line per layer: median GFLOP/s of each
// contender, share of the multiply-add peak measured in the same rotation, and the median over rounds of
// (oneDNN time / our time).
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include <dnnl.hpp>

#include "backend/cpu/conv/conv_nhwc.h"
#include "backend/cpu/conv/conv_quantized.h"
#include "backend/cpu/tiles/dense_simd.h"
#include "backend/cpu/conv/depthwise_nhwc.h"
#include "backend/cpu/dense/gemm_bf16.h"
#include "backend/cpu/dense/gemm_blocks.h"
#include "backend/cpu/dense/gemm_f32.h"
#include "base/machine/memory_read.h"

// GCC 12 warns of the deliberately undefined operands inside its own AVX-512 intrinsics.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"

namespace trireme::cpu {
namespace {

struct Options {
  std::string set = "all";
  int threads = 1;
  int64_t batch = 1;
  int rounds = 7;
  bool int8 = false;
  bool bf16 = false;  // for the training set only; oneDNN still runs in f32
  Isa isa = best_isa();
};

/// A layer as both contenders see it; a product of m rows is a 1 x 1 convolution over an m x 1 image.
struct Layer {
  std::string set, name;
  ConvShape shape;
  /// Products of training pack their weights in every call: x w', dy w or dy' x.
  enum class Form { packed, forward, grad_x, grad_w } form = Form::packed;
};

/// One contender on one layer: buffers it owns and a call that does the layer once.
using Call = std::function<void()>;

std::vector<float> random_floats(int64_t count) {
  std::mt19937 generator(7);
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  std::vector<float> out(static_cast<size_t>(count));
  for (float& x : out) x = uniform(generator);
  return out;
}

Layer product(const char* name, int64_t m, int64_t k, int64_t n) {
  Layer l = {"minilm", name, {}};
  l.shape.h = m;
  l.shape.c = k;
  l.shape.oc = n;
  return l;
}

/// Square image, "same" padding.
Layer conv(int64_t hw, int64_t c, int64_t oc, int k, int stride = 1) {
  Layer l;
  ConvShape& s = l.shape;
  s.h = s.w = hw;
  s.c = c;
  s.oc = oc;
  s.kh = s.kw = k;
  s.stride_h = s.stride_w = stride;
  s.pad_top = s.pad_left = s.pad_bottom = s.pad_right = k / 2;
  l.name = std::to_string(hw) + "x" + std::to_string(c) + "->" + std::to_string(oc) + " k" +
           std::to_string(k) + "s" + std::to_string(stride);
  return l;
}

Layer depthwise(int64_t hw, int64_t c, int stride) {
  Layer l = conv(hw, c, c, 3, stride);
  l.shape.groups = c;
  l.name = "dw " + l.name;
  return l;
}

std::vector<Layer> minilm() {
  return {product("proj 128x384x384", 128, 384, 384), product("qkv 128x384x1152", 128, 384, 1152),
          product("up 128x384x1536", 128, 384, 1536), product("down 128x1536x384", 128, 1536, 384),
          product("row 1x384x1536", 1, 384, 1536),    product("row 1x1280x1000", 1, 1280, 1000)};
}

std::vector<Layer> resnet() {
  return {conv(224, 3, 64, 7, 2), conv(56, 64, 64, 1),   conv(56, 64, 64, 3),       conv(56, 64, 256, 1),
          conv(56, 256, 64, 1),   conv(56, 256, 128, 1), conv(56, 128, 128, 3, 2),  conv(28, 128, 512, 1),
          conv(28, 512, 128, 1),  conv(28, 128, 128, 3), conv(56, 256, 512, 1, 2),  conv(14, 256, 1024, 1),
          conv(14, 1024, 256, 1), conv(14, 256, 256, 3), conv(28, 512, 1024, 1, 2), conv(7, 512, 2048, 1),
          conv(7, 2048, 512, 1),  conv(7, 512, 512, 3)};
}

std::vector<Layer> mobilenet() {
  return {conv(224, 3, 32, 3, 2), conv(112, 32, 16, 1),  conv(112, 16, 96, 1),  conv(56, 96, 24, 1),
          conv(56, 24, 144, 1),   conv(56, 144, 24, 1),  conv(28, 32, 192, 1),  conv(28, 192, 32, 1),
          conv(14, 64, 384, 1),   conv(14, 384, 64, 1),  conv(14, 384, 96, 1),  conv(14, 96, 576, 1),
          conv(14, 576, 96, 1),   conv(7, 160, 960, 1),  conv(7, 960, 160, 1),  conv(7, 960, 320, 1),
          conv(7, 320, 1280, 1),  depthwise(112, 32, 1), depthwise(112, 96, 2), depthwise(56, 144, 1),
          depthwise(28, 192, 1),  depthwise(14, 384, 1), depthwise(14, 576, 2), depthwise(7, 960, 1)};
}

/// Projections of GPT-2 and BERT-base at 1024 tokens (the head at 256), a small language model, a classifier.
std::vector<Layer> training() {
  std::vector<Layer> all;
  const int64_t shapes[][3] = {{1024, 768, 768},  {1024, 768, 2304}, {1024, 768, 3072}, {1024, 3072, 768},
                               {256, 768, 50257}, {768, 128, 512},   {64, 1024, 1024},  {64, 9216, 128}};
  for (const auto& [m, k, n] : shapes) {
    const std::string name = std::to_string(m) + "x" + std::to_string(k) + "x" + std::to_string(n);
    for (const auto& [prefix, form] : {std::pair{"forward ", Layer::Form::forward},
                                       {"grad_x ", Layer::Form::grad_x},
                                       {"grad_w ", Layer::Form::grad_w}}) {
      Layer l = product((prefix + name).c_str(), m, k, n);
      l.form = form;
      all.push_back(l);
    }
  }
  return all;
}

std::vector<Layer> layers() {
  std::vector<Layer> all;
  for (const auto& [set, list] : {std::pair{"minilm", minilm()},
                                  {"resnet", resnet()},
                                  {"mobilenet", mobilenet()},
                                  {"training", training()}}) {
    for (Layer l : list) {
      l.set = set;
      all.push_back(l);
    }
  }
  return all;
}

Call ours_training(const Layer& l, const Options& o, base::ThreadPool& pool);

Call ours(const Layer& l, const Options& o, base::ThreadPool& pool) {
  if (l.form != Layer::Form::packed) return ours_training(l, o, pool);
  struct State {
    std::vector<float> x, w, bias, y;
    std::vector<char> packed, workspace;
    ConvArgs conv;
    DepthwiseArgs depthwise;
    GemmArgs gemm;
  };
  auto s = std::make_shared<State>();
  const ConvShape& shape = l.shape;
  s->x = random_floats(shape.n * shape.h * shape.w * shape.c);
  s->w = random_floats(shape.oc * shape.c / shape.groups * shape.kh * shape.kw);
  s->bias = random_floats(shape.oc);
  s->y.resize(static_cast<size_t>(shape.n * shape.out_h() * shape.out_w() * shape.oc));
  Epilogue e;
  e.bias = s->bias.data();
  e.act = Activation::relu;
  if (shape.groups > 1) {
    s->packed.resize(s->w.size() * sizeof(float));
    float* packed = reinterpret_cast<float*>(s->packed.data());
    pack_depthwise(shape, s->w.data(), packed);
    s->depthwise = {shape, s->x.data(), packed, s->y.data(), e, o.isa};
    return [s, &pool] { depthwise_nhwc(s->depthwise, pool); };
  }
  s->packed.resize(packed_conv_bytes(shape, o.isa));
  // The first layer of a model receives its image as planes.
  const ImageLayout layout = shape.c <= 4 ? ImageLayout::nchw : ImageLayout::nhwc;
  const PackedConv weights = pack_conv(shape, s->w.data(), s->packed.data(), o.isa, layout);
  s->conv = {shape, s->x.data(), layout, weights, s->y.data(), e};
  s->workspace.resize(conv2d_workspace_bytes(shape, layout, o.threads));
  return [s, &pool] { conv2d_nhwc(s->conv, s->workspace.data(), pool); };
}

std::vector<char> random_bytes(int64_t count) {
  std::mt19937 generator(9);
  std::vector<char> out(static_cast<size_t>(count));
  for (char& x : out) x = static_cast<char>(generator());
  return out;
}

/// u8 activations, s8 weights, u8 outputs with a fused relu.
Call ours_int8(const Layer& l, const Options& o, base::ThreadPool& pool) {
  struct State {
    std::vector<char> x, w, y, packed, workspace;
    std::vector<float> scale, depthwise_weights;
    std::vector<int32_t> bias, offsets, factors;
    PackedQuantMatrix weights;
    QuantConvArgs conv;
    QuantDepthwiseArgs depthwise;
  };
  auto s = std::make_shared<State>();
  const ConvShape& shape = l.shape;
  s->x = random_bytes(shape.n * shape.h * shape.w * shape.c);
  s->w = random_bytes(shape.oc * shape.c / shape.groups * shape.kh * shape.kw);
  s->y.resize(static_cast<size_t>(shape.n * shape.out_h() * shape.out_w() * shape.oc));
  const size_t oc = static_cast<size_t>(shape.oc);
  s->scale.assign(oc, 1e-4f);
  s->bias.assign(oc, 100);
  s->offsets.resize(oc);
  s->factors.resize(oc);
  const QuantInput input = {false, 128};
  QuantEpilogue e = {QuantOutput::u8, s->offsets.data(), nullptr, s->scale.data(), 10, 10, 255};
  if (shape.groups > 1) {
    s->depthwise_weights.resize(s->w.size());
    pack_quant_depthwise({shape, s->w.data(), true, nullptr, s->bias.data()}, input,
                         {s->depthwise_weights.data(), s->offsets.data()});
    s->depthwise = {shape, s->x.data(), input, s->depthwise_weights.data(), s->y.data(), e, o.isa};
    return [s, &pool] { quant_depthwise_nhwc(s->depthwise, pool); };
  }
  s->packed.resize(packed_quant_conv_bytes(shape, o.isa));
  s->weights = pack_quant_conv(shape, {s->w.data(), true}, 0, s->packed.data(), o.isa);
  quant_offsets(s->weights, input, s->bias.data(), nullptr, {s->offsets.data(), s->factors.data()});
  s->conv = {shape, s->x.data(), ImageLayout::nhwc, input, &s->weights, s->y.data(), e};
  s->workspace.resize(quant_conv2d_workspace_bytes(shape, o.threads, o.isa));
  return [s, &pool] { quant_conv2d_nhwc(s->conv, s->workspace.data(), pool); };
}

/// y [m, n] = x [m, k] w' with w [n, k] as frameworks keep it; dx = dy w; dw = dy' x.
struct TrainingBuffers {
  std::vector<float> x, w, y, workspace;
  BlockProduct product;

  TrainingBuffers(const Layer& l, const Options& o)
      : x(random_floats(l.shape.h * l.shape.n * l.shape.c)),
        w(random_floats(l.shape.oc * l.shape.c)),
        y(random_floats(l.shape.h * l.shape.n * l.shape.oc)) {
    const int64_t m = l.shape.h * l.shape.n, k = l.shape.c, n = l.shape.oc;
    BlockProduct& p = product;
    if (l.form == Layer::Form::forward)
      p = {.m = m, .k = k, .n = n, .a = {x.data(), k}, .b = {w.data(), k, true}, .c = y.data(), .ldc = n};
    if (l.form == Layer::Form::grad_x)
      p = {.m = m, .k = n, .n = k, .a = {y.data(), n}, .b = {w.data(), k}, .c = x.data(), .ldc = k};
    if (l.form == Layer::Form::grad_w)
      p = {.m = n, .k = m, .n = k, .a = {y.data(), n, true}, .b = {x.data(), k}, .c = w.data(), .ldc = k};
    p.isa = o.isa;
    workspace.resize(gemm_blocks_workspace_bytes(p, o.threads) / sizeof(float) + 1);
  }
};

/// The same product in bf16; the values do not matter.
Call ours_bf16(const Layer& l, const Options& o, base::ThreadPool& pool) {
  const auto s = std::make_shared<TrainingBuffers>(l, o);
  const BlockProduct& p = s->product;
  const auto bits = [](const float* x) { return reinterpret_cast<const uint16_t*>(x); };
  Bf16Product q{.m = p.m, .k = p.k, .n = p.n};
  q.a = {bits(p.a.data), p.a.ld, p.a.transposed};
  q.b = {bits(p.b.data), p.b.ld, p.b.transposed};
  q.c = reinterpret_cast<uint16_t*>(p.c);
  q.ldc = p.ldc;
  s->workspace.resize(gemm_bf16_workspace_bytes(q, o.threads) / sizeof(float) + 1);
  return [s, q, &pool] { gemm_bf16(q, s->workspace.data(), pool); };
}

Call ours_training(const Layer& l, const Options& o, base::ThreadPool& pool) {
  if (o.bf16) return ours_bf16(l, o, pool);
  const auto s = std::make_shared<TrainingBuffers>(l, o);
  return [s, &pool] { gemm_blocks(s->product, s->workspace.data(), pool); };
}

Call one_dnn_training(const Layer& l, const Options& o) {
  const auto s = std::make_shared<TrainingBuffers>(l, o);
  return [s] {
    const BlockProduct& p = s->product;
    dnnl::sgemm(p.a.transposed ? 'T' : 'N', p.b.transposed ? 'T' : 'N', p.m, p.n, p.k, 1.0f, p.a.data, p.a.ld,
                p.b.data, p.b.ld, 0.0f, p.c, p.ldc);
  };
}

Call one_dnn(const Layer& l, const Options& o) {
  if (l.form != Layer::Form::packed) return one_dnn_training(l, o);
  using dnnl::memory;
  static dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  static dnnl::stream stream(engine);
  const ConvShape& s = l.shape;
  const auto in = o.int8 ? memory::data_type::u8 : memory::data_type::f32;
  const auto wt = o.int8 ? memory::data_type::s8 : memory::data_type::f32;
  const auto any = memory::format_tag::any;
  const memory::dims strides = {s.stride_h, s.stride_w};
  const memory::dims pad_l = {s.pad_top, s.pad_left}, pad_r = {s.pad_bottom, s.pad_right};
  memory::dims weight_dims = {s.oc, s.c, s.kh, s.kw};
  if (s.groups > 1) weight_dims = {s.groups, s.oc / s.groups, s.c / s.groups, s.kh, s.kw};
  dnnl::post_ops relu;
  relu.append_eltwise(1.0f, dnnl::algorithm::eltwise_relu, 0.0f, 0.0f);
  dnnl::primitive_attr attr;
  attr.set_post_ops(relu);
  if (o.int8) attr.set_output_scales(2, std::vector<float>(static_cast<size_t>(s.oc), 1e-4f));
  const auto forward = dnnl::prop_kind::forward_inference;
  memory::desc src, weights, dst;
  dnnl::primitive primitive;
  const memory::desc bias({s.oc}, o.int8 ? memory::data_type::s32 : in, memory::format_tag::x);
  const bool dense = s.kh * s.kw == 1 && s.w == 1;
  if (dense) {
    const dnnl::inner_product_forward::desc d(forward, {{s.h * s.n, s.c}, in, any}, {{s.oc, s.c}, wt, any},
                                              bias, {{s.h * s.n, s.oc}, in, any});
    const dnnl::inner_product_forward::primitive_desc p(d, attr, engine);
    src = p.src_desc(), weights = p.weights_desc(), dst = p.dst_desc();
    primitive = dnnl::inner_product_forward(p);
  } else {
    const dnnl::convolution_forward::desc d(
        forward, dnnl::algorithm::convolution_direct, {{s.n, s.c, s.h, s.w}, in, any}, {weight_dims, wt, any},
        bias, {{s.n, s.oc, s.out_h(), s.out_w()}, in, any}, strides, pad_l, pad_r);
    const dnnl::convolution_forward::primitive_desc p(d, attr, engine);
    src = p.src_desc(), weights = p.weights_desc(), dst = p.dst_desc();
    primitive = dnnl::convolution_forward(p);
  }
  std::unordered_map<int, memory> args;
  for (const auto& [id, desc] :
       {std::pair{DNNL_ARG_SRC, src}, {DNNL_ARG_WEIGHTS, weights}, {DNNL_ARG_BIAS, bias}}) {
    args[id] = memory(desc, engine);
    const int64_t bytes = static_cast<int64_t>(desc.get_size());
    const std::vector<float> floats = random_floats(bytes / 4 + 1);
    const std::vector<char> values = random_bytes(bytes);
    const void* from = o.int8 ? static_cast<const void*>(values.data()) : floats.data();
    std::memcpy(args[id].get_data_handle(), from, static_cast<size_t>(bytes));
  }
  args[DNNL_ARG_DST] = memory(dst, engine);
  return [primitive, args] {
    primitive.execute(stream, args);
    stream.wait();
  };
}

#if defined(__x86_64__)
__attribute__((target("avx512f"))) float peak_loop_avx512(int64_t rounds) {
  __m512 acc[24];
#pragma GCC unroll 24
  for (int i = 0; i < 24; ++i) acc[i] = _mm512_set1_ps(static_cast<float>(i));
  const __m512 a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(1e-3f);
  for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 24
    for (int i = 0; i < 24; ++i) acc[i] = _mm512_fmadd_ps(acc[i], a, b);
  }
  for (int i = 1; i < 24; ++i) acc[0] = _mm512_add_ps(acc[0], acc[i]);
  return _mm512_cvtss_f32(acc[0]);
}

__attribute__((target("avx2,fma"))) float peak_loop_avx2(int64_t rounds) {
  __m256 acc[12];
  for (int i = 0; i < 12; ++i) acc[i] = _mm256_set1_ps(static_cast<float>(i));
  const __m256 a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(1e-3f);
  for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 12
    for (int i = 0; i < 12; ++i) acc[i] = _mm256_fmadd_ps(acc[i], a, b);
  }
  for (int i = 1; i < 12; ++i) acc[0] = _mm256_add_ps(acc[0], acc[i]);
  return _mm256_cvtss_f32(acc[0]);
}
#endif

#if defined(__x86_64__)
__attribute__((target("avx512f,avx512vnni"))) int32_t peak_loop_vnni(int64_t rounds) {
  __m512i acc[12];
#pragma GCC unroll 12
  for (int i = 0; i < 12; ++i) acc[i] = _mm512_set1_epi32(i);
  __m512i a = _mm512_set1_epi32(static_cast<int>(rounds)), b = _mm512_set1_epi32(0x04030201);
  for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 12
    for (int i = 0; i < 12; ++i) acc[i] = _mm512_dpbusd_epi32(acc[i], a, b);
  }
#pragma GCC unroll 12
  for (int i = 1; i < 12; ++i) acc[0] = _mm512_add_epi32(acc[0], acc[i]);
  return _mm_cvtsi128_si32(_mm512_castsi512_si128(acc[0]));
}
#endif

/// Seconds; with one thread, its processor time, which the load of the machine does not lengthen.
double now(bool alone) {
  timespec t;
  clock_gettime(alone ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

/// Nanoseconds of a call that runs on `threads` threads.
double time_ns(const Call& call, int threads, double warm_seconds = 0) {
  const bool alone = threads == 1;
  call();
  for (const double begin = now(alone); now(alone) - begin < warm_seconds;) call();
  int64_t calls = 1;
  while (true) {
    const double begin = now(alone);
    for (int64_t i = 0; i < calls; ++i) call();
    const double seconds = now(alone) - begin;
    if (seconds > 1e-3) return 1e9 * seconds / static_cast<double>(calls);
    calls = seconds < 1e-4 ? calls * 8 : calls * 2;
  }
}

/// GFLOP/s that the whole team reaches now with independent multiply-adds.
double peak_gflops(const Options& o, base::ThreadPool& pool) {
#if defined(__x86_64__)
  const bool wide = o.isa >= Isa::avx512;
  const double warm = o.threads > 1 ? 0.02 : 0.0;
  const int64_t rounds = 4000;
  std::vector<float> keep(static_cast<size_t>(o.threads) * 16);
  const bool vnni = o.int8 && o.isa >= Isa::avx512_vnni;
  const Call call = [&] {
    pool.run(o.threads, [&](int64_t i) {
      float& result = keep[static_cast<size_t>(i * 16)];
      if (vnni) {
        result = static_cast<float>(peak_loop_vnni(rounds));
      } else {
        result = wide ? peak_loop_avx512(rounds) : peak_loop_avx2(rounds);
      }
    });
  };
  if (vnni) return static_cast<double>(rounds * o.threads) * 12 * 128 / time_ns(call, o.threads, warm);
  return static_cast<double>(rounds * o.threads) * (wide ? 24 * 32 : 12 * 16) /
         time_ns(call, o.threads, warm);
#else
  (void)o, (void)pool;
  return 0;
#endif
}

/// GB/s at which the whole team reads memory far larger than the caches.
double read_gbs(int threads, base::ThreadPool& pool) {
  const int64_t words = int64_t{32} << 20;  // 256 MiB per thread
  const std::vector<uint64_t> data(static_cast<size_t>(words * threads), 1);
  std::vector<uint64_t> keep(static_cast<size_t>(threads) * 8);
  const Call call = [&] {
    pool.run(threads, [&](int64_t t) {
      keep[static_cast<size_t>(t * 8)] = base::read_through(
          std::span(data).subspan(static_cast<size_t>(t * words), static_cast<size_t>(words)));
    });
  };
  return static_cast<double>(words * threads * 8) / time_ns(call, threads);
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<int64_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

struct Result {
  double ours, theirs, peak, ratio;
};

Result measure(const Layer& l, const Options& o, base::ThreadPool& pool) {
  const Call a = o.int8 ? ours_int8(l, o, pool) : ours(l, o, pool);
  const Call b = one_dnn(l, o);
  std::vector<double> mine, theirs, peaks, ratios;
  const double warm = o.threads > 1 ? 0.02 : 0.0;
  for (int round = 0; round < o.rounds; ++round) {
    peaks.push_back(peak_gflops(o, pool));
    mine.push_back(time_ns(a, o.threads, warm));
    // The other team's spinning threads must be asleep before the next contender starts.
    if (o.threads > 1) std::this_thread::sleep_for(std::chrono::milliseconds(3));
    theirs.push_back(time_ns(b, o.threads, warm));
    if (o.threads > 1) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    ratios.push_back(theirs.back() / mine.back());
  }
  const double flop = static_cast<double>(l.shape.flop());
  return {flop / median(mine), flop / median(theirs), median(peaks), median(ratios)};
}

void run(const Options& o) {
  // OMP_PROC_BIND has tied this thread to one core, and workers would inherit that: give each its own core.
  std::vector<int> cpus(static_cast<size_t>(o.threads));
  std::iota(cpus.begin(), cpus.end(), 0);
  base::ThreadPool pool(o.threads, o.threads > 1 ? std::span<const int>(cpus) : std::span<const int>());
  if (o.set == "floor") {
    std::printf("{\"set\":\"floor\",\"threads\":%d,\"type\":\"%s\",\"peak\":%.1f,\"read_gbs\":%.1f}\n",
                o.threads, o.int8 ? "int8" : "f32", peak_gflops(o, pool), read_gbs(o.threads, pool));
    return;
  }
  std::vector<double> logs;
  double ours_ns = 0, theirs_ns = 0;
  for (Layer l : layers()) {
    if (o.set != "all" && o.set != l.set) continue;
    (l.shape.w == 1 ? l.shape.h : l.shape.n) *= o.batch;
    const Result r = measure(l, o, pool);
    logs.push_back(std::log(r.ratio));
    ours_ns += static_cast<double>(l.shape.flop()) / r.ours;
    theirs_ns += static_cast<double>(l.shape.flop()) / r.theirs;
    std::printf(
        "{\"set\":\"%s\",\"layer\":\"%s\",\"threads\":%d,\"batch\":%ld,\"isa\":\"%s\",\"gflops\":%.1f,"
        "\"peak\":%.1f,\"share\":%.3f,\"onednn_gflops\":%.1f,\"ratio\":%.2f}\n",
        l.set.c_str(), l.name.c_str(), o.threads, static_cast<long>(o.batch),
        std::string(to_string(o.isa)).c_str(), r.ours, r.peak, r.ours / r.peak, r.theirs, r.ratio);
    std::fflush(stdout);
  }
  const double mean =
      std::accumulate(logs.begin(), logs.end(), 0.0) / static_cast<double>(std::max<size_t>(1, logs.size()));
  std::printf("{\"set\":\"%s\",\"threads\":%d,\"batch\":%ld,\"geomean_ratio\":%.3f,\"total_ratio\":%.3f}\n",
              o.set.c_str(), o.threads, static_cast<long>(o.batch), std::exp(mean), theirs_ns / ours_ns);
}

}  // namespace
}  // namespace trireme::cpu

int main(int argc, char** argv) {
  trireme::cpu::Options o;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i], value = argv[i + 1];
    if (flag == "--set") o.set = value;
    if (flag == "--threads") o.threads = std::stoi(value);
    if (flag == "--batch") o.batch = std::stoi(value);
    if (flag == "--rounds") o.rounds = std::stoi(value);
    if (flag == "--type") o.int8 = value == "int8", o.bf16 = value == "bf16";
    for (const trireme::cpu::Isa isa : trireme::cpu::usable_isas()) {
      if (flag == "--isa" && value == to_string(isa)) o.isa = isa;
    }
  }
  trireme::cpu::run(o);
}
