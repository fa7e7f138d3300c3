// Operands of other shapes, types, values and attributes than an operator takes: every mutant of a valid node
// is refused with an error about the model, or runs inside its operands: a page that nobody may touch lies on
// either side of each.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <ctime>
#include <limits>

#include "backend/cpu/device/cpu_stream.h"
#include "base/memory.h"
#include "ops/table.h"
#include "ops/test_eval.h"

namespace trireme::ops {
namespace {

using tensor::Dims;
using tensor::DType;
using tensor::Tensor;
using Ints = std::vector<int64_t>;
using Floats = std::vector<double>;
using Names = std::vector<std::string>;

struct Case {
  std::string op;
  std::vector<Tensor> in;
  ir::Attrs attrs = {};
  size_t results = 1;
};

Tensor f(Dims dims, double low = -1, double high = 1) {
  return testing::random_tensor(DType::f32, std::move(dims), low, high, 7);
}
Tensor typed(DType type, Dims dims, double low, double high) {
  return testing::random_tensor(type, std::move(dims), low, high, 7);
}
Tensor i64(Dims dims, Ints values) {
  return Tensor::from<int64_t>(std::move(dims), std::span<const int64_t>(values));
}
Tensor i64(Ints values) { return testing::ints(std::move(values)); }
Tensor scalar(int64_t v) { return Tensor::scalar<int64_t>(v); }
Tensor real(double v) { return Tensor::scalar<float>(static_cast<float>(v)); }
Tensor u8(Dims dims) { return typed(DType::u8, std::move(dims), 0, 200); }
Tensor i8(Dims dims) { return typed(DType::i8, std::move(dims), -100, 100); }
template <class T>
Tensor filled(const Dims& dims, T value) {
  Tensor t = Tensor::empty(tensor::dtype_of<T>(), dims);
  for (T& v : t.template mutable_data<T>()) v = value;
  return t;
}
Tensor flags(Dims dims) { return typed(DType::boolean, std::move(dims), 0, 1.99); }

std::vector<Case> window_cases() {
  const ir::Attrs pool{{"kernel_shape", Ints{2, 2}}, {"strides", Ints{1, 2}}, {"pads", Ints{0, 1, 1, 0}}};
  const Tensor x = f({2, 4, 5, 6});
  return {
      {"conv", {x, f({6, 2, 3, 2}), f({6})}, {{"group", int64_t{2}}, {"pads", Ints{1, 0, 1, 1}}}},
      {"conv", {f({1, 3, 9}), f({4, 3, 3})}, {{"auto_pad", std::string("SAME_UPPER")}}},
      {"conv_integer", {u8({2, 4, 5, 6}), u8({6, 2, 3, 2}), u8({}), u8({6})}, {{"group", int64_t{2}}}},
      {"qlinear_conv",
       {u8({2, 4, 5, 6}), real(0.1), u8({}), i8({6, 4, 3, 2}), f({6}, 0.1, 1), i8({6}), real(0.2), u8({}),
        typed(DType::i32, {6}, -9, 9)}},
      {"conv_transpose", {x, f({4, 3, 3, 2}), f({6})}, {{"group", int64_t{2}}, {"strides", Ints{2, 1}}}},
      {"deform_conv",
       {x, f({6, 2, 3, 2}), f({2, 24, 3, 5}), f({6}), f({2, 12, 3, 5})},
       {{"group", int64_t{2}}, {"offset_group", int64_t{2}}}},
      {"max_pool", {x}, pool, 2},
      {"average_pool", {x}, pool},
      {"lp_pool", {x}, pool},
      {"max_unpool",
       {f({1, 1, 2, 2}), i64({1, 1, 2, 2}, {0, 3, 8, 11}), i64({1, 1, 5, 5})},
       {{"kernel_shape", Ints{2, 2}}, {"strides", Ints{2, 2}}}},
      {"max_roi_pool",
       {x, Tensor::from<float>({2, 5}, {0, 0, 0, 3, 3, 1, 1, 1, 4, 4})},
       {{"pooled_shape", Ints{2, 2}}}},
      {"roi_align",
       {x, f({3, 4}, 0, 5), i64({0, 1, 1})},
       {{"output_height", int64_t{2}}, {"output_width", int64_t{3}}, {"mode", std::string("max")}}},
      {"col2im", {f({1, 8, 6}), i64({3, 4}), i64({2, 2})}, {{"pads", Ints{0, 0, 0, 0}}}},
  };
}

std::vector<Case> index_cases() {
  const Tensor x = f({3, 4, 5});
  return {
      {"gather", {x, i64({2, 2}, {0, 1, -1, 2})}, {{"axis", int64_t{1}}}},
      {"gather_elements", {x, i64({3, 1, 5}, Ints(15, 2))}, {{"axis", int64_t{1}}}},
      {"gather_nd", {x, i64({3, 2, 1}, {0, 1, 2, 3, 0, -1})}, {{"batch_dims", int64_t{1}}}},
      {"scatter_elements", {x, i64({3, 1, 5}, Ints(15, 2)), f({3, 1, 5})}, {{"axis", int64_t{1}}}},
      {"scatter", {x, i64({3, 1, 5}, Ints(15, 2)), f({3, 1, 5})}, {{"axis", int64_t{1}}}},
      {"scatter_nd", {x, i64({2, 2}, {0, 1, 2, 3}), f({2, 5})}, {{"reduction", std::string("add")}}},
      {"compress", {x, flags({4})}, {{"axis", int64_t{1}}}},
      {"one_hot", {i64({2, 3}, {0, 1, -1, 3, 9, 2}), scalar(4), f({2})}, {{"axis", int64_t{1}}}},
      {"top_k", {x, i64({2})}, {{"axis", int64_t{1}}}, 2},
      {"unique", {typed(DType::i32, {3, 4}, 0, 3)}, {{"axis", int64_t{1}}}, 4},
      {"non_max_suppression", {f({2, 6, 4}, 0, 9), f({2, 3, 6}, 0, 1), scalar(3), real(0.5), real(0.1)}},
      {"cum_sum", {x, scalar(1)}},
      {"cum_prod", {x, scalar(1)}},
      {"arg_max", {x}, {{"axis", int64_t{1}}}},
      {"reverse_sequence", {x, i64({1, 2, 3, 0})}},
      {"reduce_mean", {x, i64({0, 2})}},
      {"reduce_log_sum_exp", {x, i64({1})}, {{"keepdims", int64_t{0}}}},
  };
}

std::vector<Case> shape_cases() {
  const Tensor x = f({3, 4, 5});
  return {
      {"reshape", {x, i64({0, -1})}},
      {"expand", {f({3, 1, 5}), i64({2, 1, 4, 1})}},
      {"tile", {x, i64({2, 1, 3})}},
      {"concat", {x, f({3, 2, 5}), f({3, 1, 5})}, {{"axis", int64_t{1}}}},
      {"split", {x, i64({1, 3})}, {{"axis", int64_t{1}}}, 2},
      {"split", {x}, {{"axis", int64_t{1}}, {"num_outputs", int64_t{2}}}, 2},
      {"slice", {x, i64({0, 3}), i64({9, -9}), i64({0, 1}), i64({2, -1})}},
      {"transpose", {x}, {{"perm", Ints{2, 0, 1}}}},
      {"squeeze", {f({3, 1, 5}), i64({1})}},
      {"unsqueeze", {x, i64({0, -1})}},
      {"depth_to_space", {f({1, 8, 2, 3})}, {{"blocksize", int64_t{2}}}},
      {"space_to_depth", {f({1, 2, 4, 6})}, {{"blocksize", int64_t{2}}}},
      {"pad", {x, i64({1, 2, 0, 1}), real(3), i64({0, 2})}, {{"mode", std::string("reflect")}}},
      {"center_crop_pad", {x, i64({2, 7})}, {{"axes", Ints{1, 2}}}},
      {"constant_of_shape", {i64({2, 3})}, {{"value", filled<float>({1}, 2)}}},
      {"range", {scalar(2), scalar(20), scalar(3)}},
      {"range", {real(2), real(20), real(3.5)}},
      {"eye_like", {f({3, 4})}, {{"k", int64_t{1}}}},
      {"trilu", {x, scalar(1)}},
      {"cast_like", {x, i64({1})}},
      {"resize",
       {f({1, 2, 4, 5}), Tensor(), f({4}, 1, 2.5)},
       {{"mode", std::string("cubic")}, {"antialias", int64_t{1}}}},
      {"resize",
       {f({1, 2, 4, 5}), f({8}, 0, 1), Tensor(), i64({1, 2, 7, 3})},
       {{"mode", std::string("linear")},
        {"coordinate_transformation_mode", std::string("tf_crop_and_resize")}}},
      {"upsample", {f({1, 2, 4, 5}), Tensor::from<float>({4}, {1, 1, 2, 1.5f})}},
      {"grid_sample", {f({2, 3, 4, 5}), f({2, 3, 2, 2})}, {{"padding_mode", std::string("border")}}},
      {"affine_grid", {f({2, 2, 3}), i64({2, 3, 4, 5})}},
  };
}

std::vector<Case> layer_cases() {
  const Tensor x = f({2, 6, 5}), c = f({6}, 0.5, 1);
  const Tensor seq = f({4, 2, 3});  // [time, batch, input]
  const Tensor lengths = Tensor::from<int32_t>({2}, {4, 2});
  const ir::Attrs hidden{{"hidden_size", int64_t{5}}};
  return {
      {"batch_norm", {x, c, c, c, c}},
      {"batch_norm", {x, c, c, c, c}, {{"training_mode", int64_t{1}}}, 3},
      {"instance_norm", {x, c, c}},
      {"group_norm", {x, c, c}, {{"num_groups", int64_t{3}}}},
      {"layer_norm", {x, f({5}), f({6, 5})}, {{"axis", int64_t{1}}}, 3},
      {"rms_norm", {x, f({5})}},
      {"lrn", {x}, {{"size", int64_t{3}}}},
      {"rnn", {seq, f({1, 5, 3}), f({1, 5, 5}), f({1, 10}), lengths, f({1, 2, 5})}, hidden, 2},
      {"gru", {seq, f({1, 15, 3}), f({1, 15, 5}), f({1, 30}), lengths, f({1, 2, 5})}, hidden, 2},
      {"lstm",
       {seq, f({1, 20, 3}), f({1, 20, 5}), f({1, 40}), lengths, f({1, 2, 5}), f({1, 2, 5}), f({1, 15})},
       hidden,
       3},
      {"attention",
       {f({2, 4, 3, 8}), f({2, 2, 5, 8}), f({2, 2, 5, 6}), f({2, 1, 3, 5})},
       {{"is_causal", int64_t{1}}}},
      {"attention",
       {f({2, 3, 8}), f({2, 2, 8}), f({2, 2, 8}), flags({3, 5}), f({2, 2, 3, 4}), f({2, 2, 3, 4})},
       {{"q_num_heads", int64_t{2}}, {"kv_num_heads", int64_t{2}}},
       4},
      {"attention",
       {f({2, 3, 8}), f({2, 5, 8}), f({2, 5, 8}), Tensor(), Tensor(), Tensor(), i64({2, 5})},
       {{"q_num_heads", int64_t{2}}, {"kv_num_heads", int64_t{2}}}},
      {"rotary_embedding", {f({2, 3, 4, 8}), f({10, 4}), f({10, 4}), i64({2, 4}, {0, 1, 2, 3, 9, 8, 7, 6})}},
      {"rotary_embedding",
       {f({2, 4, 24}), f({2, 4, 3}), f({2, 4, 3})},
       {{"num_heads", int64_t{3}}, {"rotary_embedding_dim", int64_t{6}}}},
      {"dropout", {x, real(0.5), Tensor::scalar<bool>(true)}, {{"seed", int64_t{1}}}, 2},
      {"nll_loss", {f({2, 6, 5}), typed(DType::i64, {2, 5}, 0, 6), c}},
      {"softmax_cross_entropy_loss", {f({2, 6, 5}), typed(DType::i32, {2, 5}, 0, 6), c}, {}, 2},
  };
}

std::vector<Case> product_cases() {
  return {
      {"matmul", {f({2, 3, 4}), f({4, 5})}},
      {"gemm", {f({4, 3}), f({4, 5}), f({3, 1})}, {{"transA", int64_t{1}}}},
      {"matmul_integer", {u8({2, 3, 4}), i8({4, 5}), u8({3}), i8({5})}},
      {"qlinear_matmul",
       {u8({3, 4}), f({3}, 0.1, 1), u8({3}), i8({4, 5}), f({5}, 0.1, 1), i8({5}), real(0.1), u8({})}},
      {"quantize_linear", {f({3, 4}), f({4}, 0.1, 1), u8({4})}},
      {"quantize_linear", {f({3, 4}), f({3, 2}, 0.1, 1), u8({3, 2})}, {{"block_size", int64_t{2}}}},
      {"dequantize_linear", {i8({3, 4}), f({4}, 0.1, 1), i8({4})}},
      {"dequantize_linear", {i8({3, 4}), f({3, 2}, 0.1, 1), i8({3, 2})}, {{"block_size", int64_t{2}}}},
      {"dynamic_quantize_linear", {f({3, 4})}, {}, 3},
      {"einsum", {f({3, 4}), f({4, 5})}, {{"equation", std::string("ij,jk->ki")}}},
      {"einsum", {f({3, 4, 4})}, {{"equation", std::string("...ii->...i")}}},
      {"det", {f({2, 3, 3})}},
      {"dft", {f({2, 8, 1}), scalar(6), scalar(1)}, {{"onesided", int64_t{1}}}},
      {"stft", {f({1, 20, 1}), scalar(4), f({6}), scalar(8)}},
      {"mel_weight_matrix", {scalar(4), scalar(16), scalar(8000), real(0), real(4000)}},
      {"hann_window", {scalar(7)}},
      {"hamming_window", {scalar(7)}},
      {"blackman_window", {scalar(7)}},
      {"random_normal", {}, {{"shape", Ints{2, 3}}}},
      {"random_uniform", {}, {{"shape", Ints{2, 3}}}},
      {"multinomial", {f({2, 5})}, {{"sample_size", int64_t{4}}}},
      {"clip", {f({3, 4}), real(-0.5), real(0.5)}},
      {"where", {flags({3, 1}), f({3, 4}), f({4})}},
      {"bit_shift",
       {typed(DType::u32, {3, 4}, 0, 99), typed(DType::u32, {4}, 0, 9)},
       {{"direction", std::string("LEFT")}}},
      {"bit_cast", {f({3, 4})}, {{"to", int64_t{6}}}},
      {"cast", {f({3, 4})}, {{"to", int64_t{7}}}},
      {"mod", {typed(DType::i32, {3, 4}, 0, 99), typed(DType::i32, {4}, 1, 9)}},
      {"max", {f({3, 4}), f({4}), f({3, 1})}},
      {"mean", {f({3, 4}), f({4}), f({3, 1})}},
  };
}

/// The mutant that runs, for who reads of a segmentation fault.
char running[512];

void tell_mutant(int signal) {
  const size_t length = strnlen(running, sizeof running);
  if (write(STDERR_FILENO, running, length) > 0) std::signal(signal, SIG_DFL);
  raise(signal);
}

/// What a node is run with: operands and results that end at a page which nobody may touch, behind another
/// one.
class GuardedBuffers {
 public:
  ~GuardedBuffers() {
    for (const auto& [at, bytes] : mapped_) munmap(at, bytes);
  }
  /// Room for `bytes` in whole units of `unit` bytes, a power of 2.
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
    std::byte* memory = first + room - whole * static_cast<size_t>(unit);
    if (content != nullptr && bytes > 0) std::memcpy(memory, content, static_cast<size_t>(bytes));
    return memory;
  }

 private:
  std::vector<std::pair<void*, size_t>> mapped_;
};

int64_t unit_of(DType type) { return std::max(1, tensor::bits_of(type) / 8); }

/// As compilation has it: values that no memory holds are refused before kernels look at them.
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
  /// Runs the node by every kernel that takes it; an error about the model is as good.
  void run(const Case& c, const std::string& what) {
    const std::clock_t begin = std::clock();  // of this process alone: the machine may be busy
    std::snprintf(running, sizeof running, "in %s(%s), %s\n", c.op.c_str(), c.attrs.to_string().c_str(),
                  what.c_str());
    try {
      run_all(c, true);
      ++ran_;
      run_all(c, false);  // kernels that need a value refuse then
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
      launch(bound, node, c.in);
    }
  }

  void launch(const ir::BoundKernel& bound, const ir::NodeView& node, const std::vector<Tensor>& in) {
    GuardedBuffers buffers;
    std::vector<const void*> from;
    std::vector<void*> to;
    for (size_t i = 0; i < in.size(); ++i) {
      const bool is_read = in[i].defined() && (i >= 32 || (bound.unread_inputs >> i & 1u) == 0);
      from.push_back(is_read ? buffers.add(in[i].bytes(), unit_of(in[i].dtype()), in[i].raw()) : nullptr);
    }
    for (const tensor::TensorType& t : node.out)
      to.push_back(buffers.add(tensor::bytes_of(t), unit_of(t.dtype), nullptr));
    void* workspace = buffers.add(bound.workspace_bytes, 64, nullptr);
    cpu::CpuStream stream(pool_);
    ir::RunStatus status;
    bound.run({from.data(), to.data(), workspace, stream, &status});
  }

  base::ThreadPool pool_{2};
  int64_t ran_ = 0, refused_ = 0;
};

/// The values of `t`, over and over, in another shape and type.
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

/// Something of the kind, for attributes that a case leaves to their defaults.
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

/// Any valid node of an operator without a case of its own: one to three operands of one type.
std::optional<Case> plain_case(const ir::OpSchema& op) {
  for (DType type : {DType::f32, DType::boolean, DType::i32, DType::u8}) {
    for (const Dims& dims : {Dims{2, 3, 4}, Dims{2, 3, 4, 5}}) {
      Case c{op.name, {}, {}, std::max<size_t>(op.min_out, 1)};
      for (size_t i = 0; i < op.min_in; ++i) c.in.push_back(typed(type, dims, 0.1, 0.9));
      try {
        evaluate(table().need(op.name), c.attrs, c.in, c.results, *std::make_unique<base::ThreadPool>(1));
        return c;
      } catch (const base::Error&) {
      }
    }
  }
  return std::nullopt;
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
  longer.in.push_back(f({2}));
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

/// Every operator that a model file can name has a case, its own or a plain one.
TEST(HostileOperands, EveryOnnxOperator) {
  std::vector<Case> plain;
  std::vector<std::string> own;
  for (const auto& list : {window_cases(), index_cases(), shape_cases(), layer_cases(), product_cases()}) {
    for (const Case& c : list) own.push_back(c.op);
  }
  for (const ir::OpDef& op : table().all()) {
    if (op.schema.onnx.empty() || op.schema.is_control) continue;
    if (std::find(own.begin(), own.end(), op.schema.name) != own.end()) continue;
    const auto c = plain_case(op.schema);
    EXPECT_TRUE(c.has_value()) << "no case for " << op.schema.name;
    if (c) plain.push_back(*c);
  }
  mutate_all(plain);
}

/// Whether the extents of results come from the values of operand `i`: types alone leave them open.
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

/// The operand with one element, or all, made large in its own type.
std::vector<Tensor> enlarged(const Tensor& given) {
  std::vector<Tensor> out;
  tensor::visit_dtype(given.dtype(), [&](auto zero) {
    using T = decltype(zero);
    if constexpr (std::is_arithmetic_v<T> && !std::is_same_v<T, bool>) {
      for (const double v : {3e5, 3e8, 5e9, 1e12, 9e18}) {
        if (v > static_cast<double>(std::numeric_limits<T>::max())) continue;
        for (int64_t at = -1; at < given.elements(); ++at) {
          Tensor t = given.clone();
          const std::span<T> values = t.template mutable_data<T>();
          at < 0 ? std::fill(values.begin(), values.end(), static_cast<T>(v))
                 : static_cast<void>(values[static_cast<size_t>(at)] = static_cast<T>(v));
          out.push_back(std::move(t));
        }
      }
    }
  });
  return out;
}

/// Operands say how large results are: beyond the bound nothing is made, whatever operator it is.
TEST(HostileOperands, ResultsSizedByValuesKeepToTheBound) {
  // Besides results and workspace a kernel may take tables: those of a transform of prime length are the
  // largest.
  constexpr int64_t kMostBytes = int64_t{8} << 20, kMostGrown = 16 * kMostBytes;
  base::ThreadPool pool(1);
  std::vector<std::string> found;
  int64_t refused = 0;
  for (const auto& list : {window_cases(), index_cases(), shape_cases(), layer_cases(), product_cases()}) {
    for (const Case& c : list) {
      for (size_t i = 0; i < c.in.size(); ++i) {
        if (table().need(c.op).schema.is_control || !sets_extents(c, i)) continue;
        found.push_back(c.op);
        for (Tensor& large : enlarged(c.in[i])) {
          Case other = c;
          other.in[i] = std::move(large);
          const bool is_measured = base::reset_peak_resident();
          const int64_t before = base::resident_bytes();
          int64_t made = 0;
          try {
            for (const Tensor& t :
                 evaluate(table().need(c.op), c.attrs, other.in, c.results, pool, kMostBytes))
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
  }
  for (const char* op : {"constant_of_shape", "expand", "tile", "pad", "range", "resize", "one_hot"})
    EXPECT_NE(std::find(found.begin(), found.end(), op), found.end())
        << op << " is not seen to be of this kind";
  EXPECT_GT(refused, 50);
}

}  // namespace
}  // namespace trireme::ops
