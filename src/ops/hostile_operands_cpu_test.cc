// Operands of other shapes, types, values and attributes than an operator takes: every mutant of a valid node
// is refused with an error about the model, or runs inside its operands: each runs with a page that nobody
// may touch directly behind every operand, and with one directly before it. What runs fills its results: no
// byte of them is what the memory held before, which on a server may be another client's data.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <cstring>
#include <ctime>
#include <limits>
#include <numeric>

#include "backend/cpu/device/cpu_stream.h"
#include "base/machine/memory.h"
#include "ops/table.h"
#include "ops/test_eval.h"
#include "tests/op_cases.h"

namespace trireme::ops {
namespace {

using tensor::Dims;
using tensor::DType;
using tensor::Tensor;
using Ints = std::vector<int64_t>;
using Floats = std::vector<double>;
using Names = std::vector<std::string>;
using Case = tests::OpCase;
using tests::index_cases;
using tests::layer_cases;
using tests::plain_case;
using tests::product_cases;
using tests::shape_cases;
using tests::window_cases;

Tensor floats(Dims dims) { return testing::random_tensor(DType::f32, std::move(dims), -1, 1, 7); }
template <class T>
Tensor filled(const Dims& dims, T value) {
  Tensor t = Tensor::empty(tensor::dtype_of<T>(), dims);
  for (T& v : t.template mutable_data<T>()) v = value;
  return t;
}

/// Names the running mutant for the message of a segmentation fault.
char running[512];

void tell_mutant(int signal) {
  const size_t length = strnlen(running, sizeof running);
  if (write(STDERR_FILENO, running, length) > 0) std::signal(signal, SIG_DFL);
  raise(signal);
}

/// Which side of a buffer the inaccessible page adjoins.
enum class Guard : uint8_t { before, behind };

/// Operands and results of a node between inaccessible pages.
class GuardedBuffers {
 public:
  explicit GuardedBuffers(Guard guard) : guard_(guard) {}
  ~GuardedBuffers() {
    for (const auto& [at, bytes] : mapped_) munmap(at, bytes);
  }
  /// Room for `bytes`, rounded up to a multiple of `unit`, a power of 2.
  void* add(int64_t bytes, int64_t unit, const void* content) {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t room = (static_cast<size_t>(bytes) + page) / page * page;
    void* all = mmap(nullptr, room + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    base::check(all != MAP_FAILED, "no addresses for a buffer");
    mapped_.emplace_back(all, room + 2 * page);
    std::byte* first = static_cast<std::byte*>(all) + page;
    base::check(mprotect(first, room, PROT_READ | PROT_WRITE) == 0, "no memory for a buffer");
    const size_t whole =
        (static_cast<size_t>(bytes) + static_cast<size_t>(unit) - 1) / static_cast<size_t>(unit);
    std::byte* memory = guard_ == Guard::before ? first : first + room - whole * static_cast<size_t>(unit);
    if (content != nullptr && bytes > 0) std::memcpy(memory, content, static_cast<size_t>(bytes));
    return memory;
  }

 private:
  Guard guard_;
  std::vector<std::pair<void*, size_t>> mapped_;
};

int64_t unit_of(DType type) { return std::max(1, tensor::bits_of(type) / 8); }

/// As in compilation, values that no memory could hold are refused before kernels see them.
bool is_small(const std::vector<tensor::TensorType>& types) {
  constexpr int64_t kMost = 1 << 22;
  for (const tensor::TensorType& t : types) {
    Dims solid = t.shape.to_dims();
    std::replace(solid.begin(), solid.end(), int64_t{0}, int64_t{1});
    if (tensor::bytes_of(t.dtype, tensor::element_count(solid)) > kMost) return false;
  }
  return true;
}

class Trial {
 public:
  /// Runs the node with every kernel that accepts it; an error about the model is also accepted.
  void run(const Case& c, const std::string& what) {
    const std::clock_t begin = std::clock();  // of this process only, since the machine may be busy
    std::snprintf(running, sizeof running, "in %s(%s), %s\n", c.op.c_str(), c.attrs.to_string().c_str(),
                  what.c_str());
    try {
      run_all(c, true);
      ++ran_;
      run_all(c, false);  // kernels that need known values refuse
    } catch (const base::Error& e) {
      EXPECT_NE(e.code(), base::ErrorCode::internal) << c.op << ", " << what << ": " << e.message();
      ++refused_;
    } catch (const std::exception& e) {
      ADD_FAILURE() << c.op << ", " << what << ": " << e.what();
    }
    EXPECT_LT(std::clock() - begin, 20 * CLOCKS_PER_SEC) << c.op << ", " << what;
  }
  int64_t ran() const { return ran_; }
  int64_t refused() const { return refused_; }

 private:
  void run_all(const Case& c, bool is_known) {
    const ir::OpDef& op = table().need(c.op);
    ir::NodeView node{.attrs = c.attrs,
                      .in = {},
                      .out = {},
                      .known = {},
                      .is_present = {},
                      .out_count = c.results,
                      .name = op.schema.name};
    for (const Tensor& t : c.in) {
      node.is_present.push_back(t.defined());
      node.in.push_back(t.defined() ? t.type() : tensor::TensorType{});
      node.known.push_back(t.defined() ? &t : nullptr);
    }
    node.out = ir::infer_types(op.schema, node);
    for (const tensor::TensorType& t : node.out) {
      if (!t.shape.is_static()) base::fail_unsupported("open extents");
    }
    if (!is_small(node.out)) return;
    ir::cost_of(op.schema, node);
    if (!is_known) node.known.assign(node.in.size(), nullptr);
    for (const ir::Kernel& kernel : op.kernels) {
      if (kernel.on != tensor::DeviceKind::cpu || (kernel.refuse && kernel.refuse(node))) continue;
      base::SharedCache packs;
      const ir::BoundKernel bound = kernel.prepare({node, packs, pool_.size()});
      if (bound.workspace_bytes > 1 << 28) continue;
      const Results one = launch(bound, node, c.in, {0xA5, Guard::behind}),
                    other = launch(bound, node, c.in, {0x3C, Guard::before});
      EXPECT_TRUE(one == other) << "results hold what was in memory before: " << kernel.name << " "
                                << running;
    }
  }

  using Results = std::vector<std::vector<std::byte>>;
  /// What results and workspace are full of when a kernel begins, and where the page beside them lies.
  struct Memory {
    uint8_t content;
    Guard guard;
  };
  /// Nothing where the kernel reports an error.
  Results launch(const ir::BoundKernel& bound, const ir::NodeView& node, const std::vector<Tensor>& in,
                 const Memory& found) {
    GuardedBuffers buffers(found.guard);
    std::vector<const void*> from;
    std::vector<void*> to;
    for (size_t i = 0; i < in.size(); ++i) {
      const bool is_read = in[i].defined() && (i >= 32 || (bound.unread_inputs >> i & 1u) == 0);
      from.push_back(is_read ? buffers.add(in[i].bytes(), unit_of(in[i].dtype()), in[i].raw()) : nullptr);
    }
    const auto used = [&](int64_t bytes, int64_t unit) {
      void* memory = buffers.add(bytes, unit, nullptr);
      std::memset(memory, found.content, static_cast<size_t>(bytes));
      return memory;
    };
    for (const tensor::TensorType& t : node.out) to.push_back(used(tensor::bytes_of(t), unit_of(t.dtype)));
    void* workspace = used(bound.workspace_bytes, 64);
    cpu::CpuStream stream(pool_);
    ir::RunStatus status;
    bound.run({from.data(), to.data(), workspace, stream, &status});
    Results results;
    if (status.failed()) return results;
    for (size_t i = 0; i < to.size(); ++i) {
      const auto* first = static_cast<const std::byte*>(to[i]);
      results.emplace_back(first, first + tensor::bytes_of(node.out[i]));
    }
    return results;
  }

  base::ThreadPool pool_{2};
  int64_t ran_ = 0, refused_ = 0;
};

/// The values of `t`, repeated as needed, in another shape and type.
Tensor remade(const Tensor& t, DType type, Dims dims) {
  Tensor out = Tensor::zeros(type, std::move(dims));
  const bool is_plain = tensor::bits_of(type) >= 8 && !(tensor::is_float(type) && tensor::bits_of(type) < 16);
  const bool was_plain =
      tensor::bits_of(t.dtype()) >= 8 && !(tensor::is_float(t.dtype()) && tensor::bits_of(t.dtype()) < 16);
  if (!is_plain || !was_plain || t.elements() == 0) return out;
  const std::vector<double> values = t.to_doubles();
  tensor::visit_dtype(type, [&](auto zero) {
    size_t i = 0;
    for (auto& v : out.mutable_data<decltype(zero)>())
      v = static_cast<decltype(zero)>(std::clamp(values[i++ % values.size()], -120.0, 120.0));
  });
  return out;
}

std::vector<Dims> other_shapes(const Dims& dims) {
  std::vector<Dims> out{{}, {0}, {1}};
  const auto add = [&](auto change) {
    Dims d = dims;
    change(d);
    out.push_back(std::move(d));
  };
  for (size_t i = 0; i < dims.size(); ++i) {
    for (int64_t extent : {int64_t{0}, int64_t{1}, dims[i] - 1, dims[i] + 1, 2 * dims[i]}) {
      if (extent != dims[i]) add([&](Dims& d) { d[i] = extent; });
    }
    add([&](Dims& d) { d.erase(d.begin() + static_cast<int64_t>(i)); });
  }
  add([](Dims& d) { d.insert(d.begin(), 1); });
  add([](Dims& d) { d.push_back(1); });
  add([](Dims& d) { d.insert(d.begin(), 2); });
  return out;
}

template <class T>
std::vector<Tensor> extreme_values(const Tensor& t) {
  std::vector<Tensor> out;
  using Limits = std::numeric_limits<T>;
  std::vector<T> values{Limits::max(), Limits::lowest(), static_cast<T>(0)};
  if constexpr (Limits::has_quiet_NaN) {
    values.insert(values.end(),
                  {Limits::quiet_NaN(), Limits::infinity(), -Limits::infinity(), T(1e-30f), T(-1), T(1e10f)});
  } else {
    values.insert(values.end(), {static_cast<T>(-1), static_cast<T>(1), static_cast<T>(100)});
  }
  for (T v : values) {
    out.push_back(filled<T>(t.dims(), v));
    if (t.elements() < 2) continue;
    out.push_back(t.clone());
    out.back().template mutable_data<T>()[0] = v;
  }
  return out;
}

std::vector<ir::AttrValue> other_values(const ir::AttrValue& given) {
  constexpr int64_t kMin = std::numeric_limits<int64_t>::min(), kMax = std::numeric_limits<int64_t>::max();
  const Ints ints{-1, 0, 1, 2, 3, 1 << 20, int64_t{1} << 40, kMin, kMax};
  std::vector<ir::AttrValue> out;
  if (std::holds_alternative<int64_t>(given)) out.assign(ints.begin(), ints.end());
  if (std::holds_alternative<double>(given)) {
    for (double v : {0.0, -1.0, 1e-30, 1e30, double(NAN), double(INFINITY)}) out.emplace_back(v);
  }
  if (std::holds_alternative<std::string>(given)) out = {std::string("nonsense"), std::string("")};
  if (const auto* list = std::get_if<Ints>(&given)) {
    out = {Ints{}, Ints(list->size() + 1, 1)};
    for (size_t i = 0; i < list->size(); ++i) {
      for (int64_t v : ints) {
        Ints other = *list;
        other[i] = v;
        out.emplace_back(std::move(other));
      }
    }
    if (!list->empty()) out.emplace_back(Ints(list->begin() + 1, list->end()));
  }
  return out;
}

/// A value of the kind, for attributes that a case leaves at their defaults.
std::optional<ir::AttrValue> sample_of(const std::string& kind, size_t rank) {
  if (kind == "int") return int64_t{1};
  if (kind == "float") return 0.5;
  if (kind == "ints") return Ints(rank, 1);
  if (kind == "floats") return Floats{0.5};
  if (kind == "strings") return Names{"relu"};
  return std::nullopt;
}

void mutate_operand(Trial& trial, const Case& c, size_t i) {
  const std::string what = base::concat("operand ", i, " ");
  Case other = c;
  const auto run = [&](Tensor t, const std::string& how) {
    other.in[i] = std::move(t);
    trial.run(other, what + how);
  };
  run(Tensor(), "absent");
  const Tensor& given = c.in[i];
  if (!given.defined()) return;
  for (const Dims& dims : other_shapes(given.dims()))
    run(remade(given, given.dtype(), dims), tensor::to_string(dims));
  for (DType type :
       {DType::f32, DType::f64, DType::f16, DType::bf16, DType::i8, DType::u8, DType::i16, DType::i32,
        DType::i64, DType::u64, DType::boolean, DType::i4, DType::u4, DType::f8e4m3fn}) {
    if (type != given.dtype()) run(remade(given, type, given.dims()), std::string(name_of(type)));
  }
  if (given.elements() == 0) return;
  tensor::visit_dtype(given.dtype(), [&](auto zero) {
    using T = decltype(zero);
    if constexpr (std::is_arithmetic_v<T> && !std::is_same_v<T, bool>) {
      size_t k = 0;
      for (Tensor& t : extreme_values<T>(given)) run(std::move(t), base::concat("extreme value ", k++));
    }
  });
}

void mutate_attrs(Trial& trial, const Case& c) {
  Case all = c;
  const size_t rank = c.in.empty() || !c.in[0].defined() ? 1 : c.in[0].rank();
  for (const ir::AttrSpec& spec : table().need(c.op).schema.attrs) {
    if (all.attrs.has(spec.name)) continue;
    if (const auto value = sample_of(spec.kind, rank)) {
      Case other = c;
      other.attrs.set(spec.name, *value);
      trial.run(other, spec.name + " given");
      for (const ir::AttrValue& v : other_values(*value)) {
        other.attrs.set(spec.name, v);
        trial.run(other, ir::Attrs{{spec.name, v}}.to_string());
      }
    }
  }
  for (const auto& [name, value] : c.attrs.items()) {
    Case other = c;
    other.attrs.erase(name);
    trial.run(other, "without " + name);
    for (const ir::AttrValue& v : other_values(value)) {
      other.attrs.set(name, v);
      trial.run(other, ir::Attrs{{name, v}}.to_string());
    }
  }
}

void mutate(const Case& c, Trial& trial) {
  SCOPED_TRACE(c.op + "(" + c.attrs.to_string() + ")");
  const int64_t before = trial.ran();
  trial.run(c, "as it is");
  EXPECT_EQ(trial.ran(), before + 1) << "the case itself is refused";
  for (size_t i = 0; i < c.in.size(); ++i) mutate_operand(trial, c, i);
  mutate_attrs(trial, c);
  for (size_t results = 0; results <= 4; ++results) {
    Case other = c;
    other.results = results;
    if (results >= table().need(c.op).schema.min_out) trial.run(other, base::concat(results, " results"));
  }
  Case longer = c;
  longer.in.push_back(floats({2}));
  trial.run(longer, "one operand more");
}

void mutate_all(const std::vector<Case>& cases) {
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGABRT}) std::signal(signal, tell_mutant);
  Trial trial;
  for (const Case& c : cases) mutate(c, trial);
  EXPECT_GT(trial.ran(), 0);
  EXPECT_GT(trial.refused(), trial.ran() / 20);
}

TEST(HostileOperands, Windows) { mutate_all(window_cases()); }
TEST(HostileOperands, Indices) { mutate_all(index_cases()); }
TEST(HostileOperands, Shapes) { mutate_all(shape_cases()); }
TEST(HostileOperands, Layers) { mutate_all(layer_cases()); }
TEST(HostileOperands, Products) { mutate_all(product_cases()); }

/// Convolutions as passes make them: a form that a file can lead to must only access its own memory.
TEST(HostileOperands, FusedConvolutions) {
  const Tensor x = floats({2, 12, 12, 16}), w = floats({16, 16, 3, 3}), windows = floats({2, 6, 6, 16});
  const Tensor which = testing::random_tensor(DType::u8, {2, 6, 6, 16}, 0, 4.9, 7);
  const ir::Attrs pads{{"pads", Ints{1, 1, 1, 1}}, {"kernel_shape", Ints{3, 3}}};
  mutate_all({{"conv_pool_nhwc", {x, w, floats({16})}, pads, 2},
              {"conv_pool_nhwc", {x, w}, pads, 1},
              {"conv_pool_nhwc_grad", {x, windows, which, w}, pads, 3},
              {"conv_nhwc", {x, w, floats({16}), x}, pads},
              {"conv_nhwc",
               {floats({2, 16, 9, 7}), w, floats({16}), floats({2, 7, 5, 16})},
               {{"input_layout", std::string("nchw")}}},
              {"conv_nhwc", {x, floats({16, 1, 3, 3}), floats({16})}, {{"group", int64_t{16}}}},
              {"conv_nhwc", {floats({1, 8, 8, 4}), floats({4, 2, 3, 3})}, {{"group", int64_t{2}}}},
              {"conv_nhwc", {floats({1, 4, 6, 6, 4}), floats({4, 2, 3, 3, 3})}, {{"group", int64_t{2}}}},
              {"conv_nhwc_grad_x", {x, w}, {{"pads", Ints{1, 1, 1, 1}}, {"in_shape", Ints{12, 12}}}},
              {"conv_nhwc_grad_w", {x, x}, pads},
              {"conv_nhwc_grad_w", {floats({2, 12, 12, 3}), x}, pads, 2},
              {"separable_conv_nhwc",
               {floats({2, 6, 5, 8}), floats({8, 1, 3, 3}), floats({6, 8, 1, 1}), floats({8}), floats({6})}},
              {"separable_conv_nhwc",
               {floats({2, 6, 5, 4}), floats({8, 1, 3, 3}), floats({4, 8, 1, 1}), floats({8}), floats({4}),
                floats({8, 4, 1, 1}), floats({8}), floats({2, 6, 5, 4})},
               pads}});
}

/// Integer products with scales and zero points, which are read when the kernel is prepared.
TEST(HostileOperands, QuantizedProducts) {
  const auto codes = [](DType type, Dims dims) {
    return testing::random_tensor(type, std::move(dims), 0, 9, 3);
  };
  const auto one = [](float v) { return filled<float>({}, v); };
  const Tensor zero = codes(DType::u8, {}), w_zero = codes(DType::i8, {4}), bias = codes(DType::i32, {4});
  const Tensor x = codes(DType::u8, {3, 8}), image = codes(DType::u8, {1, 5, 5, 8});
  mutate_all(
      {{"qlinear",
        {x, one(0.1f), zero, codes(DType::i8, {8, 4}), floats({4}), w_zero, one(0.2f), zero, bias}},
       {"qlinear", {x, one(0.1f), zero, codes(DType::i8, {4, 8}), floats({4})}, {{"transposed", int64_t{1}}}},
       {"qconv_nhwc",
        {image, one(0.1f), zero, codes(DType::i8, {4, 8, 3, 3}), floats({4}), w_zero, one(0.2f), zero,
         bias}}});
}

/// Weights of 8 and 4 bits, with all optional operands.
TEST(HostileOperands, StoredWeights) {
  const auto bytes = [](DType type, Dims dims) {
    return testing::random_tensor(type, std::move(dims), 0, 99, 7);
  };
  mutate_all({{"weight_only_linear",
               {floats({2, 4, 64}), bytes(DType::u8, {6, 64}), floats({6, 2})},
               {{"bits", int64_t{8}}, {"group", int64_t{32}}}},
              {"weight_only_linear",
               {floats({2, 4, 64}), bytes(DType::u8, {6, 32}), floats({6, 2}), bytes(DType::i8, {6, 2}),
                floats({6})},
               {{"bits", int64_t{4}}, {"group", int64_t{32}}}}});
}

/// The cases of all families.
std::vector<Case> family_cases() {
  std::vector<Case> all;
  for (auto& list : {window_cases(), index_cases(), shape_cases(), layer_cases(), product_cases()})
    all.insert(all.end(), list.begin(), list.end());
  return all;
}

/// A case of every operator that a model file can name and that no family has one of.
std::vector<Case> other_cases() {
  std::vector<Case> plain;
  std::vector<std::string> own;
  for (const Case& c : family_cases()) own.push_back(c.op);
  for (const ir::OpDef& op : table().all()) {
    if (op.schema.onnx.empty() || op.schema.is_control) continue;
    if (std::find(own.begin(), own.end(), op.schema.name) != own.end()) continue;
    const auto c = plain_case(op.schema);
    EXPECT_TRUE(c.has_value()) << "no case for " << op.schema.name;
    if (c) plain.push_back(*c);
  }
  return plain;
}

TEST(HostileOperands, EveryOnnxOperator) { mutate_all(other_cases()); }

/// Whether the extents of results depend on the values of operand `i`, so that types alone leave them open.
bool sets_extents(const Case& c, size_t i) {
  if (!c.in[i].defined()) return false;
  ir::NodeView node{
      .attrs = c.attrs, .in = {}, .out = {}, .known = {}, .is_present = {}, .out_count = c.results};
  for (size_t k = 0; k < c.in.size(); ++k) {
    node.is_present.push_back(c.in[k].defined());
    node.in.push_back(c.in[k].defined() ? c.in[k].type() : tensor::TensorType{});
    node.known.push_back(c.in[k].defined() && k != i ? &c.in[k] : nullptr);
  }
  const auto types = ir::infer_types(table().need(c.op).schema, node);
  return std::any_of(types.begin(), types.end(), [](const auto& t) { return !t.shape.is_static(); });
}

/// The operand with each of `at` (-1: all) of its elements replaced by each of `values` that its type has.
std::vector<Tensor> replaced(const Tensor& given, const Floats& values, const Ints& at) {
  std::vector<Tensor> out;
  tensor::visit_dtype(given.dtype(), [&](auto zero) {
    using T = decltype(zero);
    if constexpr (std::is_arithmetic_v<T> && !std::is_same_v<T, bool>) {
      using Limits = std::numeric_limits<T>;
      for (const double v : values) {
        const bool is_real = std::isnan(v) || v != std::floor(v) || std::isinf(v);
        if (!std::is_floating_point_v<T> &&
            (is_real || v > double(Limits::max()) || v < double(Limits::lowest())))
          continue;
        for (const int64_t i : at) {
          Tensor t = given.clone();
          const std::span<T> all = t.template mutable_data<T>();
          i < 0 ? std::fill(all.begin(), all.end(), static_cast<T>(v))
                : static_cast<void>(all[static_cast<size_t>(i)] = static_cast<T>(v));
          out.push_back(std::move(t));
        }
      }
    }
  });
  return out;
}

/// Operands determine how large results are: no operator may allocate beyond the bound.
TEST(HostileOperands, ResultsSizedByValuesKeepToTheBound) {
  // Kernels may also allocate tables; those of a Fourier transform of prime length are the largest.
  constexpr int64_t kMostBytes = int64_t{8} << 20, kMostGrown = 16 * kMostBytes;
  base::ThreadPool pool(1);
  std::vector<std::string> found;
  int64_t refused = 0;
  for (const Case& c : family_cases()) {
    for (size_t i = 0; i < c.in.size(); ++i) {
      if (table().need(c.op).schema.is_control || !sets_extents(c, i)) continue;
      found.push_back(c.op);
      Ints places(static_cast<size_t>(c.in[i].elements()) + 1);
      std::iota(places.begin(), places.end(), -1);
      for (Tensor& large : replaced(c.in[i], {3e5, 3e8, 5e9, 1e12, 9e18}, places)) {
        Case other = c;
        other.in[i] = std::move(large);
        const bool is_measured = base::reset_peak_resident();
        const int64_t before = base::resident_bytes();
        int64_t made = 0;
        try {
          for (const Tensor& t :
               evaluate(table().need(c.op), c.attrs, other.in, c.results, {pool, kMostBytes}))
            made += t.bytes();
        } catch (const base::Error& e) {
          EXPECT_NE(e.code(), base::ErrorCode::internal) << c.op << ": " << e.message();
          refused += e.code() == base::ErrorCode::exhausted ? 1 : 0;
        }
        EXPECT_LE(made, kMostBytes) << c.op;
        const int64_t grown = is_measured ? base::peak_resident_bytes() - before : 0;
        EXPECT_LT(grown, kMostGrown) << c.op << " operand " << i;
      }
    }
  }
  for (const char* op : {"constant_of_shape", "expand", "tile", "pad", "range", "resize", "one_hot"})
    EXPECT_NE(std::find(found.begin(), found.end(), op), found.end())
        << op << " is not seen to be of this kind";
  EXPECT_GT(refused, 50);
}

/// An operator works on the elements that it is given and that it makes: however large, small or negative a
/// value is, it does not set how long that takes. (Loops are bounded by time: sched/run_limits_test.cc.)
TEST(HostileOperands, ValuesDoNotSetTheWork) {
  constexpr int64_t kMostBytes = int64_t{1} << 20;
  const Floats values{3e5,
                      3e7,
                      1e9,
                      5e9,
                      1e12,
                      9e18,
                      -3e5,
                      -1e9,
                      -9e18,
                      1e30,
                      -1e30,
                      1e-30,
                      0.37,
                      double(NAN),
                      double(INFINITY),
                      -double(INFINITY)};
  base::ThreadPool pool(1);
  std::vector<Case> cases = family_cases();
  for (Case& c : other_cases()) cases.push_back(std::move(c));
  int64_t ran = 0;
  for (const Case& c : cases) {
    if (table().need(c.op).schema.is_control) continue;
    for (size_t i = 0; i < c.in.size(); ++i) {
      if (!c.in[i].defined() || c.in[i].elements() == 0) continue;
      for (Tensor& unusual : replaced(c.in[i], values, {-1, 0, c.in[i].elements() - 1})) {
        Case other = c;
        other.in[i] = std::move(unusual);
        const std::clock_t begin = std::clock();
        try {
          evaluate(table().need(c.op), c.attrs, other.in, c.results, {pool, kMostBytes});
          ++ran;
        } catch (const base::Error& e) {
          EXPECT_NE(e.code(), base::ErrorCode::internal) << c.op << ": " << e.message();
        }
        EXPECT_LT(std::clock() - begin, 2 * CLOCKS_PER_SEC) << c.op << ", values of operand " << i;
      }
    }
  }
  EXPECT_GT(ran, 10'000);
}

}  // namespace
}  // namespace trireme::ops
