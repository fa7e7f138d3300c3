// Generated kernels: the text of every function compiles, on the host and (with the toolkit) for GPUs, and
// computes the same as the interpreter.
#include "backend/cuda/elementwise/element_text.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "backend/cuda/device/cuda_device.h"
#include "backend/cuda/elementwise/element_launch.h"
#include "base/rng.h"

namespace trireme::cuda {
namespace {

using tensor::DType;

constexpr const char* kNames[] = {
#define UNARY_OP(name, functor, on) #name,
#define BINARY_OP(name, functor, on) #name,
#include "backend/cuda/elementwise/element_ops.inc"
#undef UNARY_OP
#undef BINARY_OP
};

/// A program that applies all functions over `type` in turn: r = f(r, previous).
ElementProgram all_functions(ElementType type, DType dtype, size_t first, size_t count) {
  ElementProgram p{.type = type,
                   .steps = {},
                   .constants = {0.5},
                   .inputs = {{dtype, {6, 16}}, {dtype, {16}}, {dtype, {6, 1}}, {dtype, {}}},
                   .outputs = {{dtype, 0}},
                   .extent = {6, 16}};
  p.steps.push_back({.op = ElementOp::copy_, .dst = 0, .a = element_in(0)});
  for (size_t i = first; i < std::min(std::size(kNames), first + count); ++i) {
    const auto f = element_function(kNames[i], type);
    if (!f) continue;
    p.steps.push_back({.op = f->op, .dst = 1, .a = element_in(0), .b = element_in(1), .p = {0.25, 2}});
    p.steps.push_back({.op = ElementOp::muladd_,
                       .dst = 0,
                       .a = element_reg(1),
                       .b = element_constant(0),
                       .c = element_reg(0)});
  }
  p.steps.push_back(
      {.op = ElementOp::select_, .dst = 0, .a = element_in(2), .b = element_reg(0), .c = element_in(3)});
  return p;
}

/// Programs with all kinds of broadcasts and types around one sum.
std::vector<ElementProgram> shapes() {
  std::vector<ElementProgram> all;
  for (const auto& [a, b] : std::vector<std::pair<tensor::Dims, tensor::Dims>>{{{3, 5, 8}, {8}},
                                                                               {{3, 5, 8}, {5, 1}},
                                                                               {{3, 5, 7}, {3, 1, 7}},
                                                                               {{4, 6, 16}, {1, 6, 1}},
                                                                               {{41}, {1}}}) {
    for (const auto& [from, to] : std::vector<std::pair<DType, DType>>{{DType::f32, DType::f32},
                                                                       {DType::bf16, DType::f32},
                                                                       {DType::f32, DType::f16},
                                                                       {DType::f32, DType::boolean},
                                                                       {DType::f32, DType::i8}}) {
      ElementProgram p{.type = ElementType::f32,
                       .steps = {{.op = ElementOp::add_, .dst = 2, .a = element_in(0), .b = element_in(1)}},
                       .constants = {},
                       .inputs = {{from, a}, {from, b}},
                       .outputs = {{to, 2}},
                       .extent = a};
      all.push_back(p);
    }
  }
  return all;
}

std::vector<ElementProgram> programs() {
  std::vector<ElementProgram> all = shapes();
  for (size_t first = 0; first < std::size(kNames); first += 12) {
    all.push_back(all_functions(ElementType::f32, DType::f32, first, 12));
    all.push_back(all_functions(ElementType::f32, DType::bf16, first, 12));
    all.push_back(all_functions(ElementType::f64, DType::f64, first, 12));
    all.push_back(all_functions(ElementType::i64, DType::i32, first, 12));
    all.push_back(all_functions(ElementType::u64, DType::u64, first, 12));
  }
  return all;
}

TEST(ElementText, CompilesForEveryGpu) {
  if (!has_toolkit()) GTEST_SKIP() << "this build is without the CUDA toolkit";
  for (const ElementProgram& p : programs()) {
    ASSERT_FALSE(refuse_elements(p));
    for (const int arch : {80, 90}) EXPECT_GT(compile_elements(element_text(p), arch).size(), 0u);
  }
}

/// A host version of device.h: one thread, called as a function. f16 covers normal numbers only.
constexpr const char* kHostDevice = R"(#pragma once
#include <cstdint>
#include <cstring>
#define DEVICE inline
#define KERNEL(threads) extern "C" void
#define UNROLL
struct OneThread { unsigned x; };
constexpr OneThread gridDim{1}, blockDim{1}, blockIdx{0}, threadIdx{0};
struct Half { unsigned short bits; };
struct BFloat16 { unsigned short bits; };
DEVICE float of_bits(uint32_t bits) { float v; std::memcpy(&v, &bits, 4); return v; }
DEVICE uint32_t bits_of(float v) { uint32_t bits; std::memcpy(&bits, &v, 4); return bits; }
DEVICE float widened(Half v) {
  return of_bits((v.bits & 0x8000u) << 16 | ((v.bits & 0x7fffu) << 13) + ((127u - 15u) << 23));
}
DEVICE float widened(BFloat16 v) { return of_bits(uint32_t{v.bits} << 16); }
DEVICE Half rounded_half(float v) {
  const uint32_t u = bits_of(v), size = (u & 0x7fffffffu) - ((127u - 15u) << 23);
  return {static_cast<unsigned short>((u >> 16 & 0x8000u) | (size + 0xfffu + (size >> 13 & 1u)) >> 13)};
}
DEVICE BFloat16 rounded_bfloat(float v) {
  const uint32_t u = bits_of(v);
  return {static_cast<unsigned short>((u + 0x7fffu + (u >> 16 & 1u)) >> 16)};
}
)";

/// Bytes that encode small numbers of `dtype`.
std::vector<std::byte> numbers(DType dtype, int64_t count, uint64_t seed) {
  std::vector<std::byte> out(static_cast<size_t>(tensor::bytes_of(dtype, count)));
  tensor::visit_dtype(dtype, [&](auto zero) {
    using T = decltype(zero);
    for (int64_t i = 0; i < count; ++i) {
      const double v =
          3.0 * base::uniform_f64(base::philox_block(seed, 0, static_cast<uint64_t>(i))[0], 0) + 0.25;
      const T value = static_cast<T>(static_cast<float>(v));
      std::memcpy(out.data() + i * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
    }
  });
  return out;
}

void run_both(const ElementProgram& p, void (*generated)(ElementArguments)) {
  std::vector<std::vector<std::byte>> in;
  const std::unique_ptr<tensor::Device> device = open_emulated();
  base::ThreadPool pool(1);
  const std::unique_ptr<tensor::Stream> stream = device->open_stream(pool);
  std::vector<std::shared_ptr<void>> memory;
  std::vector<const void*> in_device;
  ElementArguments arguments{};
  for (size_t k = 0; k < p.inputs.size(); ++k) {
    in.push_back(numbers(p.inputs[k].dtype, tensor::element_count(p.inputs[k].dims), k + 1));
    memory.push_back(device->allocate(static_cast<int64_t>(in[k].size())));
    stream->upload(memory[k].get(), in[k].data(), static_cast<int64_t>(in[k].size()));
    in_device.push_back(memory[k].get());
  }
  for (size_t k = 0; k < in.size(); ++k) arguments.in[k] = in[k].data();
  arguments.count = tensor::element_count(p.extent);
  const int64_t bytes = tensor::bytes_of(p.outputs[0].dtype, arguments.count);
  std::vector<std::byte> want(static_cast<size_t>(bytes)), got(static_cast<size_t>(bytes));
  const std::shared_ptr<void> result = device->allocate(bytes);
  void* out[] = {result.get()};
  interpret_elements(p)(*stream, in_device.data(), out);
  stream->download(want.data(), result.get(), bytes);
  arguments.out[0] = got.data();
  generated(arguments);
  tensor::visit_dtype(p.outputs[0].dtype, [&](auto zero) {
    using T = decltype(zero);
    for (int64_t i = 0; i < arguments.count; ++i) {
      const auto a = static_cast<double>(reinterpret_cast<const T*>(want.data())[i]);
      const auto b = static_cast<double>(reinterpret_cast<const T*>(got.data())[i]);
      if (a != a && b != b) continue;
      // The compiler may contract operations to fused multiply-adds in one of the two.
      ASSERT_NEAR(a, b, 1e-4 * std::abs(a)) << i << " of\n" << element_text(p).source;
    }
  });
}

/// Writes one file of all programs, each in a namespace of its own, because all define items() and C.
void write_sources(const std::filesystem::path& folder, const std::vector<ElementProgram>& all) {
  for (const TextHeader& h : element_headers()) {
    const bool is_ours = h.name.find('.') != std::string_view::npos;  // not of the standard library
    if (is_ours && h.name != "device.h") std::ofstream(folder / h.name) << h.text;
  }
  std::ofstream(folder / "device.h") << kHostDevice;
  std::ofstream source(folder / "all.cc");
  source << "#include <cstdint>\n#include \"elements.h\"\n";
  for (size_t i = 0; i < all.size(); ++i) {
    std::string text = element_text(all[i]).source;
    const std::string name = ") elements(";
    text.replace(text.find(name), name.size(), base::concat(") elements_", i, "("));
    source << "namespace n" << i << " {\n" << text.substr(text.find("using C")) << "}\n";
  }
}

TEST(ElementText, ComputesWhatTheInterpreterComputes) {
  if (has_toolkit()) GTEST_SKIP() << "kernels of this build run on a GPU";
  if (std::system("c++ --version > /dev/null 2>&1") != 0) GTEST_SKIP() << "no C++ compiler on PATH";
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / base::concat("trireme_elements_", getpid());
  std::filesystem::create_directories(folder / "tensor");
  const std::vector<ElementProgram> all = programs();
  write_sources(folder, all);
  const std::string command =
      base::concat("c++ -std=c++20 -O1 -w -shared -fPIC -I", folder.string(), " ",
                   (folder / "all.cc").string(), " -o ", (folder / "all.so").string());
  ASSERT_EQ(std::system(command.c_str()), 0);
  void* library = ::dlopen((folder / "all.so").c_str(), RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << ::dlerror();
  for (size_t i = 0; i < all.size(); ++i) {
    const auto run =
        reinterpret_cast<void (*)(ElementArguments)>(::dlsym(library, base::concat("elements_", i).c_str()));
    ASSERT_NE(run, nullptr);
    run_both(all[i], run);
  }
  ::dlclose(library);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace trireme::cuda
