// Kernels of sample_tokens, edit_logits, count_tokens and take_tokens on CPU; a draw sorts the tokens with
// non-zero weight.
#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/cpu/device/cpu_stream.h"
#include "base/rng.h"
#include "ops/elementwise/row_kernels.h"
#include "ops/kernel_forms.h"
#include "ops/random/sample_tokens.h"
#include "tensor/sample_math.h"

namespace trireme::ops {
namespace {

/// The memory of one row: scores in f32, their weights, and token indices in the order of the cut.
struct SampleRow {
  float* x;
  uint64_t* weight;
  uint32_t* place;
  static int64_t bytes(int64_t n) { return n * static_cast<int64_t>(sizeof(uint64_t) + 2 * sizeof(float)); }
  SampleRow(void* memory, int64_t n) {
    weight = static_cast<uint64_t*>(memory);
    x = reinterpret_cast<float*>(weight + n);
    place = reinterpret_cast<uint32_t*>(x + n);
  }
};

int64_t largest(const float* x, int64_t n) {
  int64_t best = 0;
  for (int64_t i = 1; i < n; ++i) {
    if (tensor::ordered_bits(x[i]) > tensor::ordered_bits(x[best])) best = i;
  }
  return best;
}

/// How many of the first `kept` places, which are sorted, together hold top_p of their weight (nucleus
/// sampling, Holtzman et al. 2019).
int64_t cut_nucleus(const SampleRow& row, int64_t kept, float top_p) {
  uint64_t total = 0, upto = 0;
  for (int64_t i = 0; i < kept; ++i) total += row.weight[row.place[i]];
  const uint64_t goal = tensor::nucleus(top_p, total);
  int64_t i = 0;
  while (i < kept && upto < goal) upto += row.weight[row.place[i++]];
  return i;
}

/// Returns the index of the drawn token.
int64_t draw(const SampleRow& row, int64_t n, const float* settings, const int64_t* counter) {
  const auto before = [&](uint32_t a, uint32_t b) {
    const uint32_t ka = tensor::ordered_bits(row.x[a]), kb = tensor::ordered_bits(row.x[b]);
    return ka != kb ? ka > kb : a < b;
  };
  const int64_t best = largest(row.x, n);
  if (!(settings[kTemperature] > 0)) return best;
  const float scale = tensor::weight_scale(settings[kTemperature]);
  int64_t count = 0;  // tokens of weight 0 are never drawn and would be sorted last
  for (int64_t i = 0; i < n; ++i) {
    row.weight[i] = tensor::token_weight(row.x[i], row.x[best], scale);
    if (row.weight[i] > 0) row.place[count++] = static_cast<uint32_t>(i);
  }
  int64_t kept = settings[kTopK] >= 1 ? std::min(count, static_cast<int64_t>(settings[kTopK])) : count;
  if (kept < count) std::nth_element(row.place, row.place + kept, row.place + count, before);
  if (settings[kTopP] < 1) {
    std::sort(row.place, row.place + kept, before);
    kept = cut_nucleus(row, kept, settings[kTopP]);
  }
  const uint64_t least = tensor::least_weight(settings[kMinP]);
  std::sort(row.place, row.place + kept);
  uint64_t total = 0, upto = 0;
  for (int64_t i = 0; i < kept; ++i) {
    uint64_t& w = row.weight[row.place[i]];
    w = w >= least ? w : 0;
    total += w;
  }
  const base::PhiloxBlock word = base::philox_block(static_cast<uint64_t>(counter[0]), tensor::kTokenStream,
                                                    static_cast<uint64_t>(counter[1]));
  const uint64_t part = tensor::drawn_part(word[0], word[1], total);
  for (int64_t i = 0; i < kept; ++i) {
    upto += row.weight[row.place[i]];
    if (upto > part) return row.place[i];
  }
  return best;
}

/// The log-probability of token `at`, in which NaN scores do not count.
template <class T>
float log_probability(const T* x, int64_t n, int64_t at) {
  float most = -std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < n; ++i) most = std::max(most, static_cast<float>(x[i]));
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double v = static_cast<double>(static_cast<float>(x[i]));
    if (v == v) sum += std::exp(v - double{most});
  }
  return static_cast<float>(double{static_cast<float>(x[at])} - double{most} - std::log(sum));
}

ir::BoundKernel bind_sample(const ir::KernelInit& init) {
  const ir::NodeView& n = init.node;
  const int64_t rows = n.in_dims(0)[0], tokens = n.in_dims(0)[1], columns = n.in_dims(1)[1];
  const int64_t places = n.in.size() > 3 ? n.in_dims(3)[0] : 0;
  const bool wants_logarithm = n.out.size() > 1;
  const int64_t each = (SampleRow::bytes(tokens) + 63) / 64 * 64;
  return tensor::visit_dtype(n.in[0].dtype, [&](auto zero) -> ir::BoundKernel {
    using T = decltype(zero);
    auto run = [=](const ir::RunArgs& args) {
      cpu::pool_of(args.stream).for_range(rows, 1, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
          const SampleRow row(static_cast<std::byte*>(args.workspace) + r * each, tokens);
          const T* from = static_cast<const T*>(args.in[0]) + r * tokens;
          const float* s = static_cast<const float*>(args.in[1]) + r * columns;
          const int64_t place = places > 0 ? in_ptr<int32_t>(args, 4)[r] : -1;
          const int32_t* seen =
              place >= 0 && place < places ? in_ptr<int32_t>(args, 3) + place * tokens : nullptr;
          for (int64_t i = 0; i < tokens; ++i) {
            const auto v = static_cast<float>(from[i]);
            row.x[i] = seen == nullptr
                           ? v
                           : tensor::penalized(v, seen[i], s[kRepetition], s[kPresence], s[kFrequency]);
          }
          const int64_t drawn = draw(row, tokens, s, in_ptr<int64_t>(args, 2) + 2 * r);
          out_ptr<int64_t>(args, 0)[r] = drawn;
          if (wants_logarithm) out_ptr<float>(args, 1)[r] = log_probability(from, tokens, drawn);
        }
      });
    };
    return {run, rows * each};
  });
}

/// Stores x where the bit is set, else minus infinity. Most words are all ones or all zeros; the former cost
/// nothing in place.
template <class T>
void strike(const T* x, const int32_t* allowed, int64_t n, T* y) {
  constexpr int64_t kBits = 32;
  const T never = static_cast<T>(-std::numeric_limits<float>::infinity());
  for (int64_t first = 0; first < n; first += kBits) {
    const auto word = static_cast<uint32_t>(allowed[first / kBits]);
    const int64_t count = std::min(kBits, n - first);
    if (word == UINT32_MAX) {
      if (x != y) std::copy_n(x + first, count, y + first);
    } else if (word == 0) {
      std::fill_n(y + first, count, never);
    } else {
      for (int64_t i = 0; i < count; ++i) y[first + i] = (word >> i & 1) != 0 ? x[first + i] : never;
    }
  }
}

ir::BoundKernel bind_edit(const ir::KernelInit& init) {
  const ir::NodeView& n = init.node;
  const int64_t rows = n.in_dims(0)[0], tokens = n.in_dims(0)[1], words = n.in_dims(1)[1];
  const int64_t most = n.in_dims(2)[1];
  return tensor::visit_dtype(n.in[0].dtype, [&](auto zero) -> ir::BoundKernel {
    using T = decltype(zero);
    return {[=](const ir::RunArgs& args) {
      cpu::pool_of(args.stream).for_range(rows, 1, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
          T* y = static_cast<T*>(args.out[0]) + r * tokens;
          strike(static_cast<const T*>(args.in[0]) + r * tokens, in_ptr<int32_t>(args, 1) + r * words, tokens,
                 y);
          const int32_t* ids = in_ptr<int32_t>(args, 2) + r * most;
          const float* biases = in_ptr<float>(args, 3) + r * most;
          for (int64_t i = 0; i < most; ++i) {
            if (ids[i] >= 0 && ids[i] < tokens)
              y[ids[i]] = static_cast<T>(static_cast<float>(y[ids[i]]) + biases[i]);
          }
        }
      });
    }};
  });
}

void fail(const ir::RunArgs& args, const char* message, int64_t value) {
  if (args.status != nullptr) args.status->fail(message, value);
}

ir::BoundKernel bind_count(const ir::KernelInit& init) {
  const ir::NodeView& n = init.node;
  const int64_t rows = n.in_dims(1)[0], places = n.in_dims(0)[0], tokens = n.in_dims(0)[1];
  return {[=](const ir::RunArgs& args) {
    auto* seen = out_ptr<int32_t>(args, 0);
    if (args.out[0] != args.in[0]) std::copy_n(in_ptr<int32_t>(args, 0), places * tokens, seen);
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t place = in_ptr<int32_t>(args, 1)[r], token = in_ptr<int64_t>(args, 2)[r];
      if (place < 0) continue;
      if (place >= places || token < 0 || token >= tokens)
        return fail(args, "a place or token is out of range", token);
      seen[place * tokens + token] += 2;
    }
  }};
}

ir::BoundKernel bind_take(const ir::KernelInit& init) {
  const int64_t count = init.node.in_dims(2)[0], rows = init.node.in_dims(1)[0];
  return {[=](const ir::RunArgs& args) {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t from = in_ptr<int32_t>(args, 2)[i];
      if (from >= rows) return fail(args, "a row is out of range", from);
      out_ptr<int64_t>(args, 0)[i] = from < 0 ? in_ptr<int64_t>(args, 0)[i] : in_ptr<int64_t>(args, 1)[from];
    }
  }};
}

ir::Refusal refuse_logits(const ir::NodeView& n) {
  using tensor::DType;
  for (DType t : {DType::f32, DType::f16, DType::bf16}) {
    if (n.in[0].dtype == t) return std::nullopt;
  }
  return base::concat("logits are ", name_of(n.in[0].dtype));
}

}  // namespace

std::vector<ir::Kernel> sample_tokens_cpu_kernels() {
  ir::Kernel k{.name = "sorted"};
  k.refuse = [](const ir::NodeView& n) -> ir::Refusal {
    if (n.in_dims(0)[1] == 0 || n.in_dims(0)[1] > UINT32_MAX) return "no tokens, or more than 2^32";
    return refuse_logits(n);
  };
  k.prepare = bind_sample;
  return {k};
}

std::vector<ir::Kernel> edit_logits_cpu_kernels() {
  return {{.name = "words", .refuse = refuse_logits, .prepare = bind_edit, .may_overwrite = 1}};
}

std::vector<ir::Kernel> count_tokens_cpu_kernels() {
  return {{.name = "rows", .refuse = {}, .prepare = bind_count}};
}

std::vector<ir::Kernel> take_tokens_cpu_kernels() {
  return {{.name = "rows", .refuse = {}, .prepare = bind_take}};
}

}  // namespace trireme::ops
