// Memory-bound kernels against a copy of the same bytes, attention against an FMA loop; kernel and limit run
// in turn. Counters: GB/s (or GFLOP/s) of the median run, and its percentage of the limit's median in the
// same rotation.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <functional>
#include <string>
#include <vector>

#include "backend/cpu/attention/attention_encoder.h"
#include "backend/cpu/norm/batch_norm_train.h"
#include "backend/cpu/elementwise/cast_types.h"
#include "backend/cpu/norm/cross_entropy.h"
#include "backend/cpu/elementwise/dropout.h"
#include "backend/cpu/elementwise/fused_program.h"
#include "backend/cpu/norm/norm_grad.h"
#include "backend/cpu/norm/norm_rows.h"
#include "backend/cpu/quant/quantize_linear.h"
#include "backend/cpu/norm/reduce_axes.h"
#include "backend/cpu/norm/softmax_rows.h"
#include "backend/cpu/move/transpose_copy.h"

namespace trireme::cpu {
namespace {

// With one thread, its processor time, which the load of the machine does not lengthen; with a team,
// wall-clock time.
double now(bool alone) {
  timespec t;
  clock_gettime(alone ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

double seconds(bool alone, const std::function<void()>& f) {
  const double start = now(alone);
  f();
  return now(alone) - start;
}

double median(std::vector<double>& v) {
  std::nth_element(v.begin(), v.begin() + static_cast<int64_t>(v.size() / 2), v.end());
  return v[v.size() / 2];
}

// Runs kernel and limit in turn; the work of both (bytes or flop) is given, and runs last about 50 us.
struct Rotation {
  std::function<void()> kernel, limit;
  double kernel_work, limit_work;
  bool alone;  // on one thread
};

void rotate(benchmark::State& state, const Rotation& r, const char* unit) {
  const auto repeats = [&](const std::function<void()>& f) {
    seconds(r.alone, f);
    return std::max(1, static_cast<int>(5e-5 / seconds(r.alone, f)));
  };
  const int kernel_times = repeats(r.kernel), limit_times = repeats(r.limit);
  const auto many = [&](const std::function<void()>& f, int times) {
    return seconds(r.alone,
                   [&] {
                     for (int i = 0; i < times; ++i) f();
                   }) /
           times;
  };
  std::vector<double> kernel, limit;
  for (auto _ : state) {
    limit.push_back(many(r.limit, limit_times));
    kernel.push_back(many(r.kernel, kernel_times));
    state.SetIterationTime(kernel.back());
  }
  const double speed = r.kernel_work / median(kernel), bound = r.limit_work / median(limit);
  state.counters[unit] = speed / 1e9;
  state.counters["limit"] = bound / 1e9;
  state.counters["percent"] = 100 * speed / bound;
  // Best run against best run: the ratio when the machine was undisturbed for one run of each.
  state.counters["best"] = 100 * (r.kernel_work / *std::min_element(kernel.begin(), kernel.end())) /
                           (r.limit_work / *std::min_element(limit.begin(), limit.end()));
}

std::vector<float> values(int64_t n) {
  std::vector<float> v(static_cast<size_t>(n));
  uint32_t seed = 3;
  for (float& x : v)
    x = static_cast<float>(static_cast<int>((seed = seed * 1664525u + 1013904223u) >> 16) - 32768) / 8192;
  return v;
}

// An array that is made when a benchmark first asks for it, so filtered runs make only what they need.
template <class T>
class Lazy {
 public:
  explicit Lazy(int64_t n) : n_(n) {}
  T* data() {
    if (values_.empty()) {
      // Aligned to a cache line, as tensors are.
      values_.resize(static_cast<size_t>(n_) + 64 / sizeof(T));
      uint32_t seed = 3;
      for (T& x : values_) {
        seed = seed * 1664525u + 1013904223u;
        x = static_cast<T>(static_cast<float>(static_cast<int>(seed >> 16) - 32768) / 8192.0f);
      }
    }
    const size_t past = reinterpret_cast<uintptr_t>(values_.data()) % 64;
    return values_.data() + (64 - past) / sizeof(T);
  }

 private:
  int64_t n_;
  std::vector<T> values_;
};

// One kernel over `floats` input floats; `bytes` is what it has to move.
struct Job {
  double bytes;
  std::function<void(base::ThreadPool&)> run;
};

void run_job(benchmark::State& state, const Job& job, int threads) {
  base::ThreadPool pool(threads);
  // The limit: memcpy of the same number of bytes, divided among the same team.
  const int64_t half = static_cast<int64_t>(job.bytes / 2);
  std::vector<char> from(static_cast<size_t>(half), 1), to(from.size());
  rotate(state,
         {[&] { job.run(pool); },
          [&] {
            pool.for_range(half, 65536, [&](int64_t b, int64_t e) {
              std::memcpy(to.data() + b, from.data() + b, static_cast<size_t>(e - b));
            });
          },
          job.bytes, static_cast<double>(half) * 2, threads == 1},
         "GB/s");
}

void register_job(const std::string& name, const Job& job) {
  for (int threads : {1, 4}) {
    benchmark::RegisterBenchmark((name + "/threads:" + std::to_string(threads)).c_str(),
                                 [job, threads](benchmark::State& s) { run_job(s, job, threads); })
        ->UseManualTime()
        ->MinTime(0.1);
  }
}

// rows x cols is 64 Ki floats (L2) or 16 Mi floats (memory).
struct Size {
  const char* name;
  int64_t rows, cols;
};
constexpr Size kSizes[] = {{"L2", 64, 1024}, {"DRAM", 16384, 1024}};

void register_elementwise(const Size& s) {
  const int64_t n = s.rows * s.cols;
  auto x = std::make_shared<Lazy<float>>(n);
  auto y = std::make_shared<Lazy<float>>(n);
  const double bytes = 8.0 * static_cast<double>(n);
  const auto name = [&](const char* kernel) { return std::string(kernel) + "/" + s.name; };
  const std::pair<const char*, UnaryOp> functions[] = {
      {"relu", UnaryOp::relu_},     {"exp", UnaryOp::exp_},    {"tanh", UnaryOp::tanh_},
      {"gelu_erf", UnaryOp::gelu_}, {"silu", UnaryOp::swish_}, {"log", UnaryOp::log_}};
  for (const auto& [title, op] : functions) {
    const UnaryOp f = op;
    register_job(name(title), {bytes, [=](base::ThreadPool& p) {
                                 unary({f, {1, 0}}, x->data(), y->data(), n, p);
                               }});
  }
  register_job(
      name("add"),
      {bytes * 1.5, [=](base::ThreadPool& p) {
         binary(BinaryOp::add_, BinaryForm::vector_vector, {x->data(), y->data(), y->data(), 1, n}, p);
       }});
  const int64_t rows = s.rows, cols = s.cols;
  register_job(name("softmax"), {bytes, [=](base::ThreadPool& p) {
                                   softmax_rows({x->data(), y->data(), rows, cols}, p);
                                 }});
  register_job(name("layer_norm"), {bytes, [=](base::ThreadPool& p) {
                                      layer_norm({x->data(), y->data(), rows, cols, x->data(), x->data()}, p);
                                    }});
  register_job(name("sum_rows"), {bytes / 2, [=](base::ThreadPool& p) {
                                    reduce(ReduceOp::sum, {x->data(), y->data(), rows, cols, 1}, p);
                                  }});
  register_job(name("sum_columns"), {bytes / 2, [=](base::ThreadPool& p) {
                                       reduce(ReduceOp::sum, {x->data(), y->data(), 1, rows, cols}, p);
                                     }});
  // The bias gradient of a convolution: few columns.
  register_job(name("sum_columns_64"), {bytes / 2, [=](base::ThreadPool& p) {
                                          reduce(ReduceOp::sum, {x->data(), y->data(), 1, n / 64, 64}, p);
                                        }});
  const std::pair<const char*, GradientOp> derivatives[] = {{"relu_grad", GradientOp::relu_},
                                                            {"gelu_erf_grad", GradientOp::gelu_},
                                                            {"gelu_tanh_grad", GradientOp::gelu_tanh_},
                                                            {"silu_grad", GradientOp::swish_}};
  for (const auto& [title, op] : derivatives) {
    const GradientOp f = op;
    register_job(name(title), {bytes * 1.5, [=](base::ThreadPool& p) {
                                 gradient({f, {1, 0}}, {x->data(), x->data(), y->data(), n}, p);
                               }});
  }
  register_job(name("softmax_grad"), {bytes * 1.5, [=](base::ThreadPool& p) {
                                        softmax_rows_grad({x->data(), x->data(), y->data(), rows, cols}, p);
                                      }});
  register_job(name("quantize_u8"),
               {bytes * 5 / 8, [=](base::ThreadPool& p) {
                  const float scale = 0.03f;
                  quantize_linear({x->data(), y->data(), QuantType::u8, &scale, nullptr, 1, 1, n}, p);
                }});
  using tensor::DType;
  register_job(name("cast_f16"), {bytes * 6 / 8, [=](base::ThreadPool& p) {
                                    cast({x->data(), DType::f32, y->data(), DType::f16, n}, p);
                                  }});
  register_job(name("cast_bf16"), {bytes * 6 / 8, [=](base::ThreadPool& p) {
                                     cast({x->data(), DType::f32, y->data(), DType::bf16, n}, p);
                                   }});
}

void register_transpose(const Size& s) {
  for (int element_bytes : {1, 2, 4, 8}) {
    const int64_t channels = 256, inner = s.rows * s.cols / 256;
    auto x = std::make_shared<Lazy<int64_t>>(channels * inner);
    auto y = std::make_shared<Lazy<int64_t>>(channels * inner);
    const double bytes = 2.0 * element_bytes * static_cast<double>(channels * inner);
    for (bool to_nhwc : {true, false}) {
      const int64_t rows = to_nhwc ? channels : inner, cols = to_nhwc ? inner : channels;
      const std::string name =
          std::string(to_nhwc ? "nchw_nhwc_" : "nhwc_nchw_") + std::to_string(element_bytes);
      register_job(name + "/" + s.name, {bytes, [=](base::ThreadPool& p) {
                                           const int64_t shape[] = {rows, cols};
                                           const int order[] = {1, 0};
                                           permute({x->data(), y->data(), shape, order, element_bytes}, p);
                                         }});
    }
  }
}

// x * scale[row] + bias, gelu, + residual: three reads and one write for any number of steps.
void register_fused(const Size& s) {
  FusedProgram program;
  program.steps = {fused_muladd(fused_reg(0), fused_input(0), fused_input(1), fused_input(2)),
                   fused_unary(UnaryOp::relu_, fused_reg(0), fused_reg(0)),
                   fused_binary(BinaryOp::add_, fused_output(0), fused_reg(0), fused_input(3))};
  auto x = std::make_shared<Lazy<float>>(s.rows * s.cols);
  auto y = std::make_shared<Lazy<float>>(s.rows * s.cols);
  const int64_t rows = s.rows, cols = s.cols;
  register_job(std::string("fused3/") + s.name,
               {12.0 * static_cast<double>(rows * cols), [=](base::ThreadPool& p) {
                  const FusedInput in[] = {{x->data(), FusedShape::full},
                                           {x->data(), FusedShape::column},
                                           {x->data(), FusedShape::row},
                                           {y->data(), FusedShape::full}};
                  float* const out[] = {y->data()};
                  run_fused(program, {in, out, rows, cols}, p);
                }});
}

// The kernels of training besides products: batch norms of residual networks, norms and losses of language
// models. Bytes as the headers state them: each operand read and result written once, batch norm's x twice.
void register_batch_norm(const char* title, int64_t rows, int64_t channels) {
  const int64_t n = rows * channels;
  const ChannelShape shape{rows, channels, 1};
  auto x = std::make_shared<Lazy<float>>(n), y = std::make_shared<Lazy<float>>(n);
  auto dy = std::make_shared<Lazy<float>>(n), dx = std::make_shared<Lazy<float>>(n);
  auto vectors = std::make_shared<Lazy<float>>(8 * channels);
  auto space = std::make_shared<Lazy<char>>(batch_norm_workspace(shape));
  const auto forward = [=](bool residual) {
    return [=](base::ThreadPool& p) {
      float* v = vectors->data();
      batch_norm_train({.shape = shape,
                        .x = x->data(),
                        .scale = v,
                        .bias = v + channels,
                        .residual = residual ? dy->data() : nullptr,
                        .y = y->data(),
                        .mean = v + 2 * channels,
                        .inv_std = v + 3 * channels,
                        .variance_unbiased = v + 4 * channels,
                        .relu = true,
                        .workspace = space->data()},
                       p);
    };
  };
  const auto backward = [=](bool residual) {
    return [=](base::ThreadPool& p) {
      float* v = vectors->data();
      batch_norm_grad({.shape = shape,
                       .dy = dy->data(),
                       .x = x->data(),
                       .scale = v,
                       .bias = v + channels,
                       .mean = v + 2 * channels,
                       .inv_std = v + 3 * channels,
                       .y = residual ? y->data() : nullptr,
                       .dx = dx->data(),
                       .dscale = v + 5 * channels,
                       .dbias = v + 6 * channels,
                       .dresidual = residual ? dy->data() : nullptr,
                       .relu = true,
                       .workspace = space->data()},
                      p);
    };
  };
  const std::string name(title);
  const double elements = static_cast<double>(n);
  register_job("batch_norm_relu/" + name, {12 * elements, forward(false)});
  register_job("batch_norm_add_relu/" + name, {16 * elements, forward(true)});
  register_job("batch_norm_relu_grad/" + name, {20 * elements, backward(false)});
  register_job("batch_norm_add_relu_grad/" + name, {28 * elements, backward(true)});
}

void register_row_norms(const char* title, int64_t rows, int64_t cols) {
  const int64_t n = rows * cols;
  auto x = std::make_shared<Lazy<float>>(n), dy = std::make_shared<Lazy<float>>(n);
  auto dx = std::make_shared<Lazy<float>>(n), vectors = std::make_shared<Lazy<float>>(4 * cols);
  auto space = std::make_shared<Lazy<char>>(norm_grad_workspace(rows, cols));
  const double elements = static_cast<double>(n);
  const std::string name(title);
  register_job("layer_norm/" + name, {8 * elements, [=](base::ThreadPool& p) {
                                        float* v = vectors->data();
                                        layer_norm({x->data(), dx->data(), rows, cols, v, v + cols}, p);
                                      }});
  for (bool rms : {false, true}) {
    for (bool add : {false, true}) {
      const std::string kind = std::string(rms ? "rms_norm_grad" : "layer_norm_grad") + (add ? "_add/" : "/");
      register_job(kind + name, {(add ? 16 : 12) * elements, [=](base::ThreadPool& p) {
                                   float* v = vectors->data();
                                   norm_grad({.dy = dy->data(),
                                              .x = x->data(),
                                              .scale = v,
                                              .add = add ? dy->data() : nullptr,
                                              .dx = dx->data(),
                                              .dscale = v + 2 * cols,
                                              .dbias = v + 3 * cols,
                                              .rows = rows,
                                              .cols = cols,
                                              .rms = rms,
                                              .workspace = space->data()},
                                             p);
                                 }});
    }
  }
}

void register_losses(const char* title, int64_t rows, int64_t classes) {
  const int64_t n = rows * classes;
  auto x = std::make_shared<Lazy<float>>(n), dx = std::make_shared<Lazy<float>>(n);
  auto target = std::make_shared<Lazy<int64_t>>(rows);
  auto log_sums = std::make_shared<Lazy<float>>(rows);
  auto losses = std::make_shared<Lazy<double>>(rows);
  auto correct = std::make_shared<Lazy<uint8_t>>(rows);
  const auto targets = [=] {
    int64_t* t = target->data();
    for (int64_t i = 0; i < rows; ++i) t[i] = (i * 7919) % classes;
    return t;
  };
  const double elements = static_cast<double>(n);
  const std::string name(title);
  register_job("cross_entropy/" + name, {4 * elements, [=](base::ThreadPool& p) {
                                           cross_entropy({.logits = x->data(),
                                                          .target = targets(),
                                                          .rows = rows,
                                                          .classes = classes,
                                                          .terms = {},
                                                          .log_sum_exp = log_sums->data(),
                                                          .row_loss = losses->data(),
                                                          .row_correct = correct->data()},
                                                         p);
                                         }});
  register_job("cross_entropy_grad/" + name, {8 * elements, [=](base::ThreadPool& p) {
                                                cross_entropy_grad({.logits = x->data(),
                                                                    .target = targets(),
                                                                    .log_sum_exp = log_sums->data(),
                                                                    .dlogits = dx->data(),
                                                                    .rows = rows,
                                                                    .classes = classes,
                                                                    .terms = {}},
                                                                   p);
                                              }});
}

void register_dropout(const Size& s) {
  const int64_t n = s.rows * s.cols;
  auto x = std::make_shared<Lazy<float>>(n), y = std::make_shared<Lazy<float>>(n);
  register_job(std::string("dropout/") + s.name,
               {8 * static_cast<double>(n), [=](base::ThreadPool& p) {
                  dropout({.x = x->data(), .y = y->data(), .n = n, .seed = 1, .stream = 2, .ratio = 0.1}, p);
                }});
}

// Time of programs on a tiny tensor: the interpreter's overhead.
void BM_FusedTiny(benchmark::State& state) {
  const int64_t steps = state.range(0), n = state.range(1);
  FusedProgram program;
  program.constants = {1.0f};
  for (int64_t i = 0; i < steps; ++i) {
    program.steps.push_back(fused_binary(BinaryOp::add_, fused_reg(0), i == 0 ? fused_input(0) : fused_reg(0),
                                         fused_constant(0)));
  }
  program.steps.back().dst = fused_output(0);
  std::vector<float> x = values(n), y(x.size());
  const FusedInput in[] = {{x.data(), FusedShape::full}};
  float* const out[] = {y.data()};
  base::ThreadPool pool(4);
  for (auto _ : state) {
    run_fused(program, {in, out, 1, n}, pool);
    benchmark::ClobberMemory();
  }
}
BENCHMARK(BM_FusedTiny)->Args({1, 1})->Args({1, 64})->Args({100, 1})->Args({100, 64});

// 2^20 multiply-adds of 16 lanes in 16 chains, which measure the peak of one core.
template <class Vector>
__attribute__((always_inline)) inline void fma_loop(float* sink) {
  Vector acc[16];
  const Vector a = Vector{} + 1.0001f, b = Vector{} + 0.0001f;
  for (int i = 0; i < 16; ++i) acc[i] = Vector{} + static_cast<float>(i);
  for (int k = 0; k < 4096; ++k) {
    for (int i = 0; i < 16; ++i) acc[i] = acc[i] * a + b;
  }
  for (int i = 1; i < 16; ++i) acc[0] += acc[i];
  std::memcpy(sink, &acc[0], sizeof acc[0]);
}

typedef float Float16 __attribute__((vector_size(64)));
typedef float Float8Lanes __attribute__((vector_size(32)));
constexpr double kFmaSteps = 4096.0 * 16 * 2;

#pragma GCC push_options
#pragma GCC optimize("fp-contract=fast")
__attribute__((target("avx512f"))) void fma_512(float* sink) { fma_loop<Float16>(sink); }
__attribute__((target("avx2,fma"))) void fma_256(float* sink) { fma_loop<Float8Lanes>(sink); }
#pragma GCC pop_options

void register_attention() {
  struct Shape {
    int64_t batch, seq, heads, dim;
  };
  for (const Shape& s : {Shape{1, 128, 12, 64}, Shape{8, 128, 12, 32}, Shape{8, 128, 12, 64},
                         Shape{1, 512, 12, 64}, Shape{4, 16, 12, 64}, Shape{4, 128, 8, 128}}) {
    const std::string name = "attention/b" + std::to_string(s.batch) + "_s" + std::to_string(s.seq) + "_h" +
                             std::to_string(s.heads) + "_d" + std::to_string(s.dim);
    for (int threads : {1, 4}) {
      benchmark::RegisterBenchmark(
          (name + "/threads:" + std::to_string(threads)).c_str(),
          [=](benchmark::State& state) {
            base::ThreadPool pool(threads);
            const int64_t width = s.heads * s.dim;
            // q, k and v are interleaved, as a joint projection writes them.
            const std::vector<float> qkv = values(s.batch * s.seq * 3 * width);
            std::vector<float> out(static_cast<size_t>(s.batch * s.seq * width));
            const auto view = [&](int64_t part) {
              return AttentionView{qkv.data() + part * width, s.seq * 3 * width, 3 * width, s.dim};
            };
            const Attention g = {view(0), view(1), view(2), out.data(), s.batch, s.seq,
                                 s.seq,   s.heads, s.heads, s.dim,      s.dim,   0.125f};
            const bool wide = __builtin_cpu_supports("avx512f");
            std::vector<float> sink(static_cast<size_t>(threads * 64));
            rotate(state,
                   {[&] { attention(g, pool); },
                    [&] {
                      pool.run(threads, [&](int64_t i) { (wide ? fma_512 : fma_256)(sink.data() + i * 64); });
                    },
                    4.0 * static_cast<double>(s.batch * s.heads * s.seq * s.seq * s.dim),
                    kFmaSteps * (wide ? 16 : 8) * threads, threads == 1},
                   "GFLOP/s");
          })
          ->UseManualTime()
          ->MinTime(0.1);
    }
  }
}

const bool kRegistered = [] {
  for (const Size& s : kSizes) {
    register_elementwise(s);
    register_fused(s);
    register_transpose(s);
    register_dropout(s);
  }
  // ResNet-50, batch 16: first and last stages; a BERT layer, batch 8 of 128; GPT-2's vocabulary.
  register_batch_norm("112x112x64", 16 * 112 * 112, 64);
  register_batch_norm("56x56x256", 16 * 56 * 56, 256);
  register_batch_norm("14x14x256", 16 * 14 * 14, 256);
  register_batch_norm("7x7x2048", 16 * 7 * 7, 2048);
  register_row_norms("1024x768", 1024, 768);
  register_losses("1024x50257", 1024, 50257);
  register_losses("64x1000", 64, 1000);
  register_attention();
  return true;
}();

}  // namespace
}  // namespace trireme::cpu
