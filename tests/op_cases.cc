// Builds valid nodes of the operators, as cases for tests.
#include "tests/op_cases.h"

#include "ops/test_eval.h"

namespace trireme::tests {
namespace {

using tensor::Dims;
using tensor::DType;
using tensor::Tensor;
using Ints = std::vector<int64_t>;
using Case = OpCase;
using ops::table;

Tensor f(Dims dims, double low = -1, double high = 1) {
  return ops::testing::random_tensor(DType::f32, std::move(dims), low, high, 7);
}
Tensor typed(DType type, Dims dims, double low, double high) {
  return ops::testing::random_tensor(type, std::move(dims), low, high, 7);
}
Tensor i64(Dims dims, Ints values) {
  return Tensor::from<int64_t>(std::move(dims), std::span<const int64_t>(values));
}
Tensor i64(Ints values) { return ops::testing::ints(std::move(values)); }
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

}  // namespace

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
  Tensor one_kept = filled({4}, false);
  one_kept.mutable_data<bool>()[1] = true;
  return {
      {"gather", {x, i64({2, 2}, {0, 1, -1, 2})}, {{"axis", int64_t{1}}}},
      {"gather_elements", {x, i64({3, 1, 5}, Ints(15, 2))}, {{"axis", int64_t{1}}}},
      {"gather_nd", {x, i64({3, 2, 1}, {0, 1, 2, 3, 0, -1})}, {{"batch_dims", int64_t{1}}}},
      {"scatter_elements", {x, i64({3, 1, 5}, Ints(15, 2)), f({3, 1, 5})}, {{"axis", int64_t{1}}}},
      {"scatter", {x, i64({3, 1, 5}, Ints(15, 2)), f({3, 1, 5})}, {{"axis", int64_t{1}}}},
      {"scatter_nd", {x, i64({2, 2}, {0, 1, 2, 3}), f({2, 5})}, {{"reduction", std::string("add")}}},
      {"compress", {x, flags({4})}, {{"axis", int64_t{1}}}},
      {"compress", {x, one_kept}, {{"axis", int64_t{1}}}},
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

/// A valid node of an operator that has no case of its own: operands of one type, as few as it accepts.
std::optional<Case> plain_case(const ir::OpSchema& op) {
  base::ThreadPool pool(1);
  for (DType type : {DType::f32, DType::boolean, DType::i32, DType::u8}) {
    for (const Dims& dims : {Dims{2, 3, 4}, Dims{2, 3, 4, 5}}) {
      Case c{op.name, {}, {}, std::max<size_t>(op.min_out, 1)};
      for (size_t i = 0; i < op.min_in; ++i) c.in.push_back(typed(type, dims, 0.1, 0.9));
      try {
        ops::evaluate(table().need(op.name), c.attrs, c.in, c.results, pool);
        return c;
      } catch (const base::Error&) {
      }
    }
  }
  return std::nullopt;
}

}  // namespace trireme::tests
