// Tensors that repeat a block, by mapping the same pages several times.
#include "tensor/repeated.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "base/error.h"

namespace trireme::tensor {
namespace {

/// Unmaps the address range; repetition_of() recognizes such tensors by this type.
struct UnmapRepeated {
  size_t bytes;
  Repetition repetition;
  void operator()(const void* at) const { ::munmap(const_cast<void*>(at), bytes); }
};

/// A memory file that holds the bytes of the block.
class BlockFile {
 public:
  explicit BlockFile(const Tensor& block) : fd_(::memfd_create("repeated", MFD_CLOEXEC)) {
    const auto bytes = static_cast<size_t>(block.bytes());
    void* at = MAP_FAILED;
    if (fd_ >= 0 && ::ftruncate(fd_, block.bytes()) == 0)
      at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
    if (at == MAP_FAILED) fail("a file in memory", block.bytes());
    std::memcpy(at, block.raw(), bytes);
    ::munmap(at, bytes);
  }
  ~BlockFile() { ::close(fd_); }
  BlockFile(const BlockFile&) = delete;
  BlockFile& operator=(const BlockFile&) = delete;
  int fd() const { return fd_; }
  [[noreturn]] static void fail(const char* what, int64_t bytes) {
    base::fail(base::ErrorCode::exhausted, "no room for a repeated tensor: ", what, " of ", bytes, " bytes");
  }

 private:
  int fd_;
};

}  // namespace

Tensor repeated(const Tensor& block, int64_t first, Dims dims) {
  const int64_t count = block.elements(), unit = bytes_of(block.dtype(), kRepeatedUnit);
  base::require(count > 0 && count % kRepeatedUnit == 0 && first % kRepeatedUnit == 0 && first >= 0,
                "a repeated block of ", count, " elements from ", first, ": multiples of ", kRepeatedUnit);
  const int64_t used = bytes_of(block.dtype(), element_count(dims));
  if (used == 0) return Tensor::empty(block.dtype(), std::move(dims));
  const int64_t bytes = (used + unit - 1) / unit * unit;
  const BlockFile file(block);
  void* at = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) BlockFile::fail("addresses", bytes);
  first %= count;
  const std::shared_ptr<const void> owner(static_cast<const void*>(at),
                                          UnmapRepeated{static_cast<size_t>(bytes), {block, first}});
  int64_t from = bytes_of(block.dtype(), first);
  for (int64_t done = 0; done < bytes;) {
    const int64_t part = std::min(bytes - done, block.bytes() - from);
    void* to = static_cast<std::byte*>(at) + done;
    if (::mmap(to, static_cast<size_t>(part), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, file.fd(),
               from) == MAP_FAILED)
      BlockFile::fail("a mapping", part);
    done += part;
    from = 0;
  }
  return Tensor::view(block.dtype(), std::move(dims),
                      {static_cast<const std::byte*>(at), static_cast<size_t>(used)}, owner);
}

Repetition repetition_of(const Tensor& tensor) {
  const auto* made = std::get_deleter<UnmapRepeated>(tensor.owner());
  if (made == nullptr || tensor.dtype() != made->repetition.block.dtype()) return {};
  const auto bytes = static_cast<size_t>(tensor.bytes());
  const auto unit = static_cast<size_t>(bytes_of(tensor.dtype(), kRepeatedUnit));
  // A slice of such a tensor has fewer bytes.
  const bool is_whole = (bytes + unit - 1) / unit * unit == made->bytes;
  return is_whole ? made->repetition : Repetition{};
}

}  // namespace trireme::tensor
