// Reading checkpoints: the index is checked first, then every chunk by its checksum.
#include <algorithm>
#include <cstring>
#include <map>

#include "base/crc32c.h"
#include "base/error.h"
#include "base/file.h"
#include "train/checkpoint.h"

namespace trireme::train {
namespace {

using base::Json;
using tensor::Dims;
using tensor::Tensor;

constexpr base::JsonLimits kIndexLimits{
    .depth = 100, .size_bytes = size_t{1} << 30, .nan_and_infinity = true};

/// A box of a tensor: where its first element is and how far it reaches, by dimension.
struct Chunk {
  Dims offset, size;
  std::span<const std::byte> bytes;
};

using Files = std::map<std::string, std::shared_ptr<const base::MappedFile>>;

Dims dims_of(const Json& list) {
  Dims dims;
  for (const Json& d : list.as_array()) {
    dims.push_back(d.as_int());
    base::require(dims.back() >= 0, "negative extent");
  }
  return dims;
}

uint32_t parse_hex(const std::string& text) {
  base::require(text.size() == 8 && text.find_first_not_of("0123456789abcdef") == std::string::npos,
                "checksum '", text, "' is not eight hexadecimal digits");
  return static_cast<uint32_t>(std::stoul(text, nullptr, 16));
}

/// The index with its own checksum verified and removed.
Json read_index(const std::string& directory) {
  const std::string path = directory + "/index.json";
  Json index;
  try {
    index = base::parse_json(base::read_file(path), kIndexLimits);
    base::require(index.get_or("format", "") == "trireme-checkpoint", "not a checkpoint's index");
    base::require(index.at("version").as_int() == 1, "version ", index.at("version").as_int(),
                  " is newer than this program");
    const uint32_t stored = parse_hex(index.at("index_crc32c").as_string());
    std::erase_if(index.as_object(), [](const base::JsonMember& m) { return m.key == "index_crc32c"; });
    base::require(base::crc32c(index.dump({.nan_and_infinity = true})) == stored,
                  "the checksum differs: the file is corrupt");
  } catch (const base::Error& e) {
    throw e.with("'" + path + "'");
  }
  return index;
}

Chunk read_chunk(const Json& entry, const std::string& directory, Files& files) {
  const std::string name = entry.at("file").as_string();
  auto& file = files[name];
  if (file == nullptr) file = base::MappedFile::open(base::safe_join(directory, name));
  const int64_t at = entry.at("byte_offset").as_int();
  const int64_t bytes = entry.at("bytes").as_int();
  const auto size = static_cast<int64_t>(file->size());
  base::require(at >= 0 && bytes >= 0 && at <= size && bytes <= size - at, "file '", name,
                "' is truncated: bytes ", at, " to ", at + bytes, " wanted, it has ", size);
  Chunk chunk{dims_of(entry.at("offset")), dims_of(entry.at("size")),
              file->bytes().subspan(static_cast<size_t>(at), static_cast<size_t>(bytes))};
  const uint32_t found = base::crc32c(chunk.bytes);
  base::require(found == parse_hex(entry.at("crc32c").as_string()), "file '", name,
                "' is corrupt: the checksum of bytes ", at, " to ", at + bytes, " differs");
  return chunk;
}

bool overlap(const Chunk& a, const Chunk& b) {
  for (size_t d = 0; d < a.size.size(); ++d) {
    if (a.offset[d] >= b.offset[d] + b.size[d] || b.offset[d] >= a.offset[d] + a.size[d]) return false;
  }
  return true;
}

/// The chunks must tile the whole box: inside it, disjoint, and of the same volume.
void check_cover(const Dims& dims, const std::vector<Chunk>& chunks) {
  int64_t volume = 0;
  for (size_t i = 0; i < chunks.size(); ++i) {
    const Chunk& c = chunks[i];
    base::require(c.offset.size() == dims.size() && c.size.size() == dims.size(),
                  "a chunk has another rank than its tensor");
    for (size_t d = 0; d < dims.size(); ++d) {
      base::require(c.offset[d] <= dims[d] && c.size[d] <= dims[d] - c.offset[d],
                    "a chunk reaches outside its tensor");
    }
    const int64_t elements = tensor::element_count(c.size);
    volume += elements;
    for (size_t k = 0; k < i && elements > 0; ++k) {
      base::require(tensor::element_count(chunks[k].size) == 0 || !overlap(chunks[k], c),
                    "two chunks overlap");
    }
  }
  base::require(volume == tensor::element_count(dims), "chunks hold ", volume, " of ",
                tensor::element_count(dims), " elements");
}

/// Copies a chunk into its place, one innermost row at a time.
void place(const Chunk& chunk, Tensor& whole, int64_t element_bytes) {
  const Dims& dims = whole.dims();
  const size_t rank = dims.size();
  const int64_t row = rank == 0 ? 1 : chunk.size[rank - 1];
  const int64_t rows = row == 0 ? 0 : tensor::element_count(chunk.size) / row;
  Dims at(rank, 0);  // of the row inside the chunk
  for (int64_t r = 0; r < rows; ++r) {
    int64_t to = 0;
    for (size_t d = 0; d < rank; ++d) to = to * dims[d] + chunk.offset[d] + at[d];
    std::memcpy(whole.mutable_raw() + to * element_bytes, chunk.bytes.data() + r * row * element_bytes,
                static_cast<size_t>(row * element_bytes));
    for (size_t d = rank < 2 ? 0 : rank - 1; d-- > 0;) {
      if (++at[d] < chunk.size[d]) break;
      at[d] = 0;
    }
  }
}

Tensor read_tensor(const Json& entry, const std::string& directory, Files& files) {
  const tensor::DType dtype = tensor::dtype_from_name(entry.at("dtype").as_string());
  const Dims dims = dims_of(entry.at("shape"));
  const int64_t element_bytes = tensor::bytes_of(dtype, 1);
  std::vector<Chunk> chunks;
  for (const Json& one : entry.at("chunks").as_array()) {
    chunks.push_back(read_chunk(one, directory, files));
    const auto wanted = tensor::bytes_of(dtype, tensor::element_count(chunks.back().size));
    base::require(static_cast<int64_t>(chunks.back().bytes.size()) == wanted, "a chunk holds ",
                  chunks.back().bytes.size(), " bytes, its size wants ", wanted);
  }
  check_cover(dims, chunks);
  Tensor whole = Tensor::empty(dtype, dims);
  for (const Chunk& chunk : chunks) place(chunk, whole, element_bytes);
  return whole;
}

}  // namespace

Checkpoint load_checkpoint_meta(const std::string& directory) {
  const Json index = read_index(directory);
  return {index.at("step").as_int(), index.at("meta"), {}};
}

Checkpoint load_checkpoint(const std::string& directory) {
  const Json index = read_index(directory);
  Checkpoint checkpoint{index.at("step").as_int(), index.at("meta"), {}};
  Files files;
  for (const Json& entry : index.at("tensors").as_array()) {
    const std::string& name = entry.at("name").as_string();
    try {
      checkpoint.tensors.emplace_back(name, read_tensor(entry, directory, files));
    } catch (const base::Error& e) {
      throw e.with("checkpoint '" + directory + "': tensor '" + name + "'");
    }
  }
  std::sort(checkpoint.tensors.begin(), checkpoint.tensors.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  return checkpoint;
}

}  // namespace trireme::train
