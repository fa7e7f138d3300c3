// A dense row-major tensor on the host: allocation, views, conversions of small tensors.
#include "tensor/tensor.h"

#include <cstdlib>
#include <cstring>

#include "base/machine/memory.h"
#include "base/memory/memory_budget.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TRIREME_WATCHES_ADDRESSES
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define TRIREME_WATCHES_ADDRESSES
#endif
#ifdef TRIREME_WATCHES_ADDRESSES
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, bytes) ((void)(address), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes) ((void)(address), (void)(bytes))
#endif

namespace trireme::tensor {
namespace {

constexpr size_t kAlignment = 64;  // one cache line, one AVX-512 register
// The approximate overhead of a tensor, as many small tensors fill memory too.
constexpr int64_t kOwnBytes = 192;

/// Refuses sizes that the machine cannot hold. Systems that overcommit would grant the address space and kill
/// the process at the first access. Smaller sizes are not checked, as this would cost more than it protects.
void refuse_impossible(int64_t bytes, const Dims& dims) {
  constexpr int64_t kWorthAsking = int64_t{1} << 30;
  if (bytes < kWorthAsking || bytes <= base::memory_limit_bytes()) return;
  base::fail(base::ErrorCode::exhausted, "no memory for a tensor of ", bytes, " bytes, shape ",
             to_string(dims));
}

}  // namespace

Tensor Tensor::empty(DType dtype, Dims dims) {
  Tensor t;
  t.dtype_ = dtype;
  t.elements_ = element_count(dims);
  t.dims_ = std::move(dims);
  refuse_impossible(t.bytes(), t.dims_);
  const size_t bytes = static_cast<size_t>(t.bytes());
  const size_t padded = (std::max<size_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
  const int64_t taken = static_cast<int64_t>(padded) + kOwnBytes;
  base::MemoryBudget& budget = base::process_memory();
  if (!budget.try_take(base::MemoryUse::tensors, taken)) {
    base::fail(base::ErrorCode::exhausted, "no memory for a tensor of ", bytes, " bytes, shape ",
               to_string(t.dims_), ":", budget.state());
  }
  void* memory = std::aligned_alloc(kAlignment, padded);
  if (memory == nullptr) {
    budget.give_back(base::MemoryUse::tensors, taken);
    base::fail(base::ErrorCode::exhausted, "no memory for a tensor of ", bytes, " bytes, shape ",
               to_string(t.dims_));
  }
  // Lets the address sanitizer detect reads of the bytes that pad the last cache line.
  std::byte* rest = static_cast<std::byte*>(memory) + bytes;
  ASAN_POISON_MEMORY_REGION(rest, padded - bytes);
  t.data_ =
      std::shared_ptr<const std::byte>(static_cast<std::byte*>(memory), [bytes, padded](const std::byte* p) {
        ASAN_UNPOISON_MEMORY_REGION(p + bytes, padded - bytes);
        std::free(const_cast<std::byte*>(p));
        base::process_memory().give_back(base::MemoryUse::tensors, static_cast<int64_t>(padded) + kOwnBytes);
      });
  return t;
}

Tensor Tensor::zeros(DType dtype, Dims dims) {
  Tensor t = empty(dtype, std::move(dims));
  std::memset(t.mutable_raw(), 0, static_cast<size_t>(t.bytes()));
  return t;
}

Tensor Tensor::view(DType dtype, Dims dims, std::span<const std::byte> bytes,
                    std::shared_ptr<const void> owner) {
  Tensor t;
  t.dtype_ = dtype;
  t.elements_ = element_count(dims);
  t.dims_ = std::move(dims);
  if (t.bytes() != static_cast<int64_t>(bytes.size())) {
    base::fail_invalid("tensor of type ", name_of(dtype), to_string(t.dims_), " needs ", t.bytes(),
                       " bytes, got ", bytes.size());
  }
  // An empty view must still count as defined, so it points to a static object.
  static const std::byte kNothing{};
  const std::byte* data = bytes.data() == nullptr ? &kNothing : bytes.data();
  t.data_ = std::shared_ptr<const std::byte>(std::move(owner), data);
  return t;
}

Tensor Tensor::reshaped(Dims dims) const {
  if (element_count(dims) != elements_)
    base::fail_invalid("cannot view ", to_string(dims_), " as ", to_string(dims));
  Tensor t = *this;
  t.dims_ = std::move(dims);
  return t;
}

Tensor Tensor::rows(int64_t begin, int64_t end) const {
  if (rank() < 1 || begin < 0 || begin > end || end > dims_[0])
    base::fail_invalid("rows [", begin, ",", end, ") are not inside ", to_string(dims_));
  base::check(bits_of(dtype_) % 8 == 0, "rows of a sub-byte tensor");
  Tensor t = *this;
  const int64_t row = dims_[0] == 0 ? 0 : elements_ / dims_[0];
  t.dims_[0] = end - begin;
  t.elements_ = row * (end - begin);
  t.data_ = std::shared_ptr<const std::byte>(data_, data_.get() + bytes_of(dtype_, row * begin));
  return t;
}

Tensor Tensor::clone() const {
  Tensor t = empty(dtype_, dims_);
  std::memcpy(t.mutable_raw(), raw(), static_cast<size_t>(bytes()));
  return t;
}

std::vector<double> Tensor::to_doubles() const {
  std::vector<double> out;
  out.reserve(static_cast<size_t>(elements_));
  visit_dtype(dtype_, [&](auto zero) {
    for (auto v : data<decltype(zero)>()) out.push_back(static_cast<double>(v));
  });
  return out;
}

std::vector<int64_t> Tensor::to_ints() const {
  std::vector<int64_t> out;
  out.reserve(static_cast<size_t>(elements_));
  visit_dtype(dtype_, [&](auto zero) {
    for (auto v : data<decltype(zero)>()) out.push_back(static_cast<int64_t>(v));
  });
  return out;
}

uint64_t content_hash(const Tensor& t) {
  uint64_t hash = 0xcbf29ce484222325ull;
  const auto mix = [&hash](uint64_t v) { hash = (hash ^ v) * 0x100000001b3ull; };
  mix(static_cast<uint64_t>(t.dtype()));
  for (int64_t d : t.dims()) mix(static_cast<uint64_t>(d));
  for (int64_t i = 0; i < t.bytes(); ++i) mix(static_cast<uint64_t>(t.raw()[i]));
  return hash;
}

bool Tensor::same_as(const Tensor& other) const {
  if (!defined() || !other.defined()) return defined() == other.defined();
  return dtype_ == other.dtype_ && dims_ == other.dims_ &&
         (data_ == other.data_ || std::memcmp(raw(), other.raw(), static_cast<size_t>(bytes())) == 0);
}

}  // namespace trireme::tensor
