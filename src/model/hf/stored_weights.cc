// Converts matrices of quantized checkpoints to the layout that products read.
#include "model/hf/stored_weights.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <span>

#include "base/machine/cpu_info.h"
#include "model/hf/checkpoint.h"
#include "ops/table.h"
#include "ops/weight_only/weight_only.h"

namespace trireme::model::hf {
namespace {

using tensor::Dims;
using tensor::DType;
using tensor::Tensor;

constexpr int64_t kWordBits = 32;

/// A tensor that must exist, with one of the given types and exactly these extents.
const Tensor& need(const FindTensor& find, const std::string& name, const Dims& dims,
                   std::initializer_list<DType> types) {
  const Tensor* t = find(name);
  if (t == nullptr) base::fail(base::ErrorCode::not_found, "the checkpoint has no tensor '", name, "'");
  const bool fits = std::find(types.begin(), types.end(), t->dtype()) != types.end();
  base::require(fits && t->dims() == dims, "tensor '", name, "' is ", t->type().to_string(), ", expected ",
                tensor::name_of(*types.begin()), " ", tensor::to_string(dims));
  return *t;
}

/// The codes and zero points of a matrix [n, k], both unsigned, and scales, by groups of adjacent columns.
struct Codes {
  int64_t n = 0, k = 0, groups = 1;
  int bits = 4;
  std::vector<float> scales;   // [n, groups]
  std::vector<int> zeros;      // [n, groups]; empty: the middle of the codes
  std::vector<int32_t> order;  // [k]: where column j is stored; empty: at j
  /// Writes the codes of `count` rows from `first` on to [count, k]; called once per task.
  std::function<void(int64_t first, int64_t count, uint8_t* to)> open;
  int64_t rows_at_once = 16;

  int64_t group() const { return k / groups; }
  int middle() const { return 1 << (bits - 1); }
};

/// The group length that products use: the largest supported one that divides the file's group length.
int64_t group_of_products(int64_t group) {
  for (const int64_t length : {128, 64, 32}) {
    if (group % length == 0) return length;
  }
  return group;
}

/// [n, groups], with each value repeated for the shorter groups that products use.
template <class To, class From>
Tensor spread(const std::vector<From>& values, int64_t n, int64_t groups, int64_t times, From less) {
  Tensor out = Tensor::empty(tensor::dtype_of<To>(), {n, groups * times});
  To* to = out.mutable_data<To>().data();
  for (const From value : values) {
    for (int64_t i = 0; i < times; ++i) *to++ = static_cast<To>(value - less);
  }
  return out;
}

/// 4 bits: blocks of 32 weights in 16 bytes. 8 bits: codes less 128.
void put_codes(const uint8_t* codes, int64_t k, int bits, uint8_t* to) {
  if (bits == 8) {
    for (int64_t i = 0; i < k; ++i) to[i] = static_cast<uint8_t>(codes[i] ^ 0x80);
    return;
  }
  for (int64_t block = 0; block < k; block += 32, to += 16) {
    for (int64_t i = 0; i < 16; ++i)
      to[i] = static_cast<uint8_t>(codes[block + i] | codes[block + 16 + i] << 4);
  }
}

/// Stored column s is column `from[s]` of the matrix.
std::vector<int32_t> sources_of(const Codes& c) {
  std::vector<int32_t> from(c.order.size());
  for (size_t j = 0; j < c.order.size(); ++j) from[static_cast<size_t>(c.order[j])] = static_cast<int32_t>(j);
  return from;
}

Tensor packed(const Codes& c) {
  base::require(c.bits == 8 || c.k % 32 == 0, "rows of ", c.k, " weights of 4 bits are no multiple of 32");
  const int64_t bytes = c.k * c.bits / 8, each = c.rows_at_once;
  Tensor out = Tensor::empty(DType::u8, {c.n, bytes});
  auto* to = reinterpret_cast<uint8_t*>(out.mutable_raw());
  const std::vector<int32_t> from = sources_of(c);
  base::ThreadPool pool(base::read_cpu_info().threads());
  pool.run((c.n + each - 1) / each, [&](int64_t task) {
    const int64_t first = task * each, count = std::min(each, c.n - first);
    std::vector<uint8_t> codes(static_cast<size_t>(count * c.k)), sorted(from.size());
    c.open(first, count, codes.data());
    for (int64_t r = 0; r < count; ++r) {
      const uint8_t* row = codes.data() + r * c.k;
      for (size_t s = 0; s < from.size(); ++s) sorted[s] = row[from[s]];
      put_codes(from.empty() ? row : sorted.data(), c.k, c.bits, to + (first + r) * bytes);
    }
  });
  return out;
}

StoredParam finished(const Codes& c, std::string from) {
  const int64_t group = group_of_products(c.group()), times = c.group() / group;
  StoredParam stored{.data = packed(c), .bits = c.bits, .group = group, .from = std::move(from)};
  stored.scale = spread<float, float>(c.scales, c.n, c.groups, times, 0.0f);
  const bool has_zeros =
      std::any_of(c.zeros.begin(), c.zeros.end(), [&](int zero) { return zero != c.middle(); });
  if (has_zeros) {
    const int less = c.bits == 8 ? 128 : 0;
    for (const int zero : c.zeros)
      base::require(zero >= less - 128 && zero <= less + 127, "a zero point of ", zero);
    stored.zero = spread<int8_t, int>(c.zeros, c.n, c.groups, times, less);
  }
  if (!c.order.empty()) stored.order = Tensor::from<int32_t>({c.k}, std::span<const int32_t>(c.order));
  return stored;
}

std::string text_of(const char* method, const Codes& c) {
  std::string text = base::concat(method, " of ", c.bits, " bits, ");
  text += c.groups == 1 ? std::string("a scale for each row") : base::concat("groups of ", c.group());
  const bool has_zeros =
      std::any_of(c.zeros.begin(), c.zeros.end(), [&](int zero) { return zero != c.middle(); });
  if (has_zeros) text += ", zero points";
  if (!c.order.empty()) text += ", columns in the order of their groups";
  return text;
}

/// Transposes scales from [groups, n] to [n, groups].
std::vector<float> transposed_scales(const Tensor& t) {
  const Tensor wide = to_f32(t);
  const int64_t groups = t.dims()[0], n = t.dims()[1];
  std::vector<float> out(static_cast<size_t>(groups * n));
  for (int64_t g = 0; g < groups; ++g) {
    for (int64_t i = 0; i < n; ++i)
      out[static_cast<size_t>(i * groups + g)] = wide.data<float>()[static_cast<size_t>(g * n + i)];
  }
  return out;
}

std::vector<float> scales_of(const Tensor& t) {
  const Tensor wide = to_f32(t);
  return {wide.data<float>().begin(), wide.data<float>().end()};
}

uint32_t word_at(const Tensor& t, int64_t i) {
  uint32_t word = 0;
  std::memcpy(&word, t.raw() + 4 * i, sizeof word);
  return word;
}

/// The number of groups in scales, whose groups must divide rows of k.
int64_t groups_of(const Tensor& scales, size_t dim, const std::string& name, int64_t k) {
  base::require(scales.rank() == 2 && scales.dims()[dim] > 0 && k % scales.dims()[dim] == 0, "tensor '", name,
                "' is ", scales.type().to_string(), " for rows of ", k);
  return scales.dims()[dim];
}

/// Column j of the eight in a word is stored in nibble kAwqPlace[j].
constexpr int kAwqPlace[8] = {0, 4, 1, 5, 2, 6, 3, 7};

StoredParam awq_weight(const FindTensor& find, const std::string& stem, int64_t k) {
  const Tensor& scales = *find(stem + ".scales");
  Codes c{.k = k, .groups = groups_of(scales, 0, stem + ".scales", k), .scales = transposed_scales(scales)};
  c.n = scales.dims()[1];
  base::require(c.n % 8 == 0, "layer '", stem, "' has ", c.n, " rows, no multiple of 8");
  const int64_t words = c.n / 8;
  const Tensor& q = need(find, stem + ".qweight", {k, words}, {DType::i32});
  const Tensor& zeros = need(find, stem + ".qzeros", {c.groups, words}, {DType::i32});
  for (int64_t row = 0; row < c.n; ++row) {
    for (int64_t g = 0; g < c.groups; ++g)
      c.zeros.push_back(static_cast<int>(word_at(zeros, g * words + row / 8) >> 4 * kAwqPlace[row % 8] & 15));
  }
  c.rows_at_once = 128;  // 16 words: a cache line in each row of the file
  c.open = [&q, k, words](int64_t first, int64_t count, uint8_t* to) {
    for (int64_t i = 0; i < k; ++i) {
      for (int64_t r = 0; r < count; r += 8) {
        const uint32_t word = word_at(q, i * words + (first + r) / 8);
        for (int64_t j = 0; j < 8; ++j)
          to[(r + j) * k + i] = static_cast<uint8_t>(word >> 4 * kAwqPlace[j] & 15);
      }
    }
  };
  return finished(c, text_of("awq", c));
}

/// The position of each column after sorting by group. Empty if the columns are sorted already.
std::vector<int32_t> order_of(const Tensor& of_column, const Codes& c, const std::string& stem) {
  const std::vector<int64_t> group = of_column.to_ints();
  if (std::all_of(group.begin(), group.end(), [](int64_t g) { return g < 0; })) return {};
  std::vector<int32_t> sorted(group.size()), order(group.size());
  std::iota(sorted.begin(), sorted.end(), 0);
  std::stable_sort(sorted.begin(), sorted.end(), [&](int32_t a, int32_t b) {
    return group[static_cast<size_t>(a)] < group[static_cast<size_t>(b)];
  });
  for (size_t s = 0; s < sorted.size(); ++s) {
    base::require(group[static_cast<size_t>(sorted[s])] == static_cast<int64_t>(s) / c.group(), "layer '",
                  stem, "': groups of its g_idx are not all of ", c.group(), " columns");
    order[static_cast<size_t>(sorted[s])] = static_cast<int32_t>(s);
  }
  return std::is_sorted(order.begin(), order.end()) ? std::vector<int32_t>{} : order;
}

StoredParam gptq_weight(const FindTensor& find, const Quantization& how, const std::string& stem, int64_t k) {
  const Tensor& q = *find(stem + ".qweight");
  const Tensor* scales = find(stem + ".scales");
  base::require(q.dtype() == DType::i32 && q.rank() == 2 && scales != nullptr, "layer '", stem,
                "' has no words of codes, or no scales");
  Codes c{.n = q.dims()[1],
          .k = k,
          .groups = groups_of(*scales, 0, stem + ".scales", k),
          .bits = static_cast<int>(q.dims()[0] * kWordBits / k),
          .scales = transposed_scales(*scales)};
  if ((c.bits != 4 && c.bits != 8) || q.dims()[0] * kWordBits != k * c.bits)
    base::fail_unsupported("layer '", stem, "': codes ", q.type().to_string(), " of rows of ", k,
                           ", which are neither of 4 nor of 8 bits");
  need(find, stem + ".scales", {c.groups, c.n}, {DType::f16, DType::bf16, DType::f32});
  const int64_t each = kWordBits / c.bits, words = (c.n + each - 1) / each;
  const uint32_t mask = (1u << c.bits) - 1;
  const Tensor& zeros = need(find, stem + ".qzeros", {c.groups, words}, {DType::i32});
  for (int64_t row = 0; row < c.n; ++row) {
    for (int64_t g = 0; g < c.groups; ++g) {
      const uint32_t word = word_at(zeros, g * words + row / each);
      c.zeros.push_back(static_cast<int>(word >> row % each * c.bits & mask) + (how.lacks_one ? 1 : 0));
    }
  }
  if (find(stem + ".g_idx") != nullptr)
    c.order = order_of(need(find, stem + ".g_idx", {k}, {DType::i32, DType::i64}), c, stem);
  c.open = [&q, n = c.n, k, each, bits = c.bits, mask](int64_t first, int64_t count, uint8_t* to) {
    for (int64_t word = 0; word < k / each; ++word) {
      for (int64_t r = 0; r < count; ++r) {
        const uint32_t codes = word_at(q, word * n + first + r);
        for (int64_t j = 0; j < each; ++j)
          to[r * k + word * each + j] = static_cast<uint8_t>(codes >> j * bits & mask);
      }
    }
  };
  return finished(c, text_of("gptq", c));
}

/// Zero points of compressed-tensors: signed bytes [n, groups], or unsigned, packed in words along n.
std::vector<int> compressed_zeros(const FindTensor& find, const std::string& name, const Codes& c) {
  const Tensor* t = find(name);
  if (t == nullptr) return {};
  std::vector<int> zeros;
  if (t->dtype() == DType::i8) {
    base::require(t->elements() == c.n * c.groups || t->elements() == 1, "tensor '", name, "' is ",
                  t->type().to_string());
    for (const int64_t zero : t->to_ints()) zeros.push_back(static_cast<int>(zero) + c.middle());
    zeros.resize(static_cast<size_t>(c.n * c.groups), zeros[0]);
    return zeros;
  }
  const int64_t each = kWordBits / c.bits;
  const Tensor& words = need(find, name, {(c.n + each - 1) / each, c.groups}, {DType::i32});
  for (int64_t row = 0; row < c.n; ++row) {
    for (int64_t g = 0; g < c.groups; ++g)
      zeros.push_back(static_cast<int>(word_at(words, row / each * c.groups + g) >> row % each * c.bits &
                                       ((1u << c.bits) - 1)));
  }
  return zeros;
}

/// The scales of n rows: one for all, one per row, or one per group.
std::vector<float> row_scales(const Tensor& t, const std::string& name, Codes& c) {
  std::vector<float> scales = scales_of(t);
  if (t.elements() == 1) {
    c.groups = 1;
    scales.resize(static_cast<size_t>(c.n), scales[0]);
    return scales;
  }
  base::require(t.rank() >= 1 && t.rank() <= 2 && t.dims()[0] == c.n && t.elements() % c.n == 0 &&
                    c.k % (t.elements() / c.n) == 0,
                "tensor '", name, "' is ", t.type().to_string(), " for a matrix [", c.n, ",", c.k, "]");
  c.groups = t.elements() / c.n;
  return scales;
}

/// compressed-tensors: codes packed in words along the rows.
StoredParam word_weight(const FindTensor& find, const std::string& stem, int64_t k) {
  const Tensor& q = *find(stem + ".weight_packed");
  const Tensor* scales = find(stem + ".weight_scale");
  base::require(q.dtype() == DType::i32 && q.rank() == 2 && scales != nullptr, "layer '", stem,
                "' has no words of codes, or no scales");
  if (const Tensor* shape = find(stem + ".weight_shape")) {
    base::require(shape->to_ints() == std::vector<int64_t>{q.dims()[0], k}, "tensor '", stem,
                  ".weight_shape' does not say [", q.dims()[0], ", ", k, "]");
  }
  Codes c{.n = q.dims()[0], .k = k, .bits = static_cast<int>(q.dims()[1] * kWordBits / k)};
  if ((c.bits != 4 && c.bits != 8) || q.dims()[1] * kWordBits != k * c.bits)
    base::fail_unsupported("layer '", stem, "': codes ", q.type().to_string(), " of rows of ", k,
                           ", which are neither of 4 nor of 8 bits");
  c.scales = row_scales(*scales, stem + ".weight_scale", c);
  c.zeros = compressed_zeros(find, stem + ".weight_zero_point", c);
  if (find(stem + ".weight_g_idx") != nullptr)
    c.order = order_of(need(find, stem + ".weight_g_idx", {k}, {DType::i32, DType::i64}), c, stem);
  const int64_t each = kWordBits / c.bits;
  c.open = [&q, k, each, bits = c.bits](int64_t first, int64_t count, uint8_t* to) {
    for (int64_t word = first * k / each; word < (first + count) * k / each; ++word) {
      const uint32_t codes = word_at(q, word);
      for (int64_t j = 0; j < each; ++j) *to++ = static_cast<uint8_t>(codes >> j * bits & ((1u << bits) - 1));
    }
  };
  return finished(c, text_of("compressed-tensors", c));
}

/// Signed bytes [n, k], used in place.
StoredParam byte_weight(const FindTensor& find, const std::string& stem, const Tensor& w) {
  const Tensor* scales = find(stem + ".weight_scale");
  base::require(scales != nullptr, "layer '", stem, "' in 8 bits has no weight_scale");
  Codes c{.n = w.dims()[0], .k = w.dims()[1], .bits = 8};
  c.scales = row_scales(*scales, stem + ".weight_scale", c);
  c.zeros = compressed_zeros(find, stem + ".weight_zero_point", c);
  const int64_t group = group_of_products(c.group()), times = c.group() / group;
  StoredParam stored{.bits = 8, .group = group, .from = text_of("compressed-tensors", c)};
  stored.data = Tensor::view(DType::u8, w.dims(), {w.raw(), static_cast<size_t>(w.bytes())}, w.owner());
  stored.scale = spread<float, float>(c.scales, c.n, c.groups, times, 0.0f);
  if (std::any_of(c.zeros.begin(), c.zeros.end(), [](int zero) { return zero != 128; }))
    stored.zero = spread<int8_t, int>(c.zeros, c.n, c.groups, times, 128);
  return stored;
}

/// 8-bit floats [n, k], used in place, with scales for the matrix, its rows or its blocks.
StoredParam float8_weight(const FindTensor& find, const Quantization& how, const std::string& stem,
                          const Tensor& w) {
  const Tensor* scales = find(stem + ".weight_scale_inv");
  if (scales == nullptr) scales = find(stem + ".weight_scale");
  base::require(scales != nullptr, "layer '", stem, "' in 8-bit floats has no weight_scale");
  const int64_t n = w.dims()[0], k = w.dims()[1];
  StoredParam stored{.data = w, .bits = 8};
  const std::vector<float> given = scales_of(*scales);
  const auto across = [](int64_t extent, int64_t block) { return (extent + block - 1) / block; };
  const int64_t rows = how.block_rows, columns = how.block_columns;  // of a block
  const bool by_blocks = rows > 0 && scales->dims() == Dims({across(n, rows), across(k, columns)});
  const int64_t group = group_of_products(by_blocks ? std::gcd(columns, k) : k);
  if (by_blocks) {
    stored.from = base::concat("8-bit floats, scales of blocks of ", rows, " by ", columns);
  } else {
    base::require(scales->elements() == 1 || scales->elements() == n, "scales of layer '", stem, "' are ",
                  scales->type().to_string(), " for a matrix [", n, ",", k, "]");
    stored.from = scales->elements() == 1 ? "8-bit floats, one scale" : "8-bit floats, a scale for each row";
  }
  stored.group = group;
  stored.scale = Tensor::empty(DType::f32, {n, k / group});
  float* to = stored.scale.mutable_data<float>().data();
  for (int64_t row = 0; row < n; ++row) {
    for (int64_t at = 0; at < k; at += group) {
      const int64_t of_row = given.size() == 1 ? 0 : row;
      const int64_t of_block = by_blocks ? row / rows * scales->dims()[1] + at / columns : 0;
      *to++ = given[static_cast<size_t>(by_blocks ? of_block : of_row)];
    }
  }
  return stored;
}

StoredParam found(const FindTensor& find, const Quantization& how, const std::string& stem, int64_t k) {
  using Method = Quantization::Method;
  const bool has_words = find(stem + ".qweight") != nullptr;
  if (has_words && how.method == Method::awq && find(stem + ".scales") != nullptr)
    return awq_weight(find, stem, k);
  if (has_words && how.method == Method::gptq) return gptq_weight(find, how, stem, k);
  if (find(stem + ".weight_packed") != nullptr && how.method == Method::compressed)
    return word_weight(find, stem, k);
  const Tensor* w = find(stem + ".weight");
  if (w == nullptr || w->rank() != 2 || w->dims()[1] != k) return {};
  if (w->dtype() == DType::i8 && how.method == Method::compressed) return byte_weight(find, stem, *w);
  if (w->dtype() == DType::f8e4m3fn) return float8_weight(find, how, stem, *w);
  return {};
}

}  // namespace

StoredParam stored_weight(const FindTensor& find, const Quantization& how, const std::string& stem,
                          int64_t k) {
  if (how.method == Quantization::Method::none || k <= 0) return {};
  return found(find, how, stem, k);
}

Tensor floats_of(const StoredParam& s) {
  if (!s.format.empty()) {
    base::ThreadPool all(base::read_cpu_info().threads());
    return ops::evaluate(ops::table().need("dequantize_blocks"), {{"format", s.format}}, {s.data}, 1, all)[0];
  }
  ir::Attrs attrs;
  if (s.group > 0) attrs = {{"bits", s.bits}, {"group", s.group}};
  base::ThreadPool pool(base::read_cpu_info().threads());
  std::vector<Tensor> in{s.data, s.scale, s.zero, s.order};
  while (!in.back().defined()) in.pop_back();
  return ops::evaluate(ops::table().need("dequantize_weights"), attrs, in, 1, pool)[0];
}

}  // namespace trireme::model::hf
