// Reads checkpoints: checks the index first, then checksums, and assembles boxes from chunks.
#include <algorithm>
#include <cstring>
#include <map>

#include "base/crc32c.h"
#include "base/error.h"
#include "tensor/element_bytes.h"
#include "train/files/box_copy.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/checkpoint_reader.h"

namespace trireme::train {
namespace {

using base::Json;
using tensor::Box;
using tensor::Dims;
using tensor::Tensor;

constexpr base::JsonLimits kIndexLimits{
    .depth = 100, .size_bytes = size_t{1} << 30, .nan_and_infinity = true};

constexpr size_t kMaxRank = 64;  // as in NumPy

Dims dims_of(const Json& list) {
  base::require(list.size() <= kMaxRank, "a shape has ", list.size(), " dimensions, at most ", kMaxRank);
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

/// Reads the index; verifies and removes its own checksum.
Json read_index(const std::string& directory) {
  const std::string path = directory + "/index.json";
  Json index;
  try {
    index = base::parse_json(base::read_file(path), kIndexLimits);
    base::require(index.get_or("format", "") == "trireme-checkpoint", "not a checkpoint's index");
    base::require(index.at("version").as_int() == 1, "version ", index.at("version").as_int(),
                  " is newer than this program");
    const uint32_t stored = parse_hex(index.at("index_crc32c").as_string());
    index.as_object().erase("index_crc32c");
    base::require(base::crc32c(index.dump({.nan_and_infinity = true})) == stored,
                  "the checksum differs: the file is corrupt");
  } catch (const base::Error& e) {
    throw e.with("'" + path + "'");
  }
  return index;
}

/// The dimensions along which chunks are cut; in all others, every chunk spans the tensor.
std::vector<size_t> cut_dims(const StoredTensor& t) {
  constexpr size_t kMost = 4;  // 2^4 corners per chunk; a mesh cuts a tensor along two or three
  std::vector<size_t> cut;
  for (size_t d = 0; d < t.dims.size(); ++d) {
    const auto is_part = [&](const StoredTensor::Chunk& c) { return c.box.size[d] != t.dims[d]; };
    if (std::any_of(t.chunks.begin(), t.chunks.end(), is_part)) cut.push_back(d);
  }
  base::require(cut.size() <= kMost, "chunks are cut along ", cut.size(), " dimensions, at most ", kMost);
  return cut;
}

/// Adds `sign` at the first corner of a box and at every corner an even number of steps away, and subtracts
/// it at the others.
void add_corners(const Box& box, const std::vector<size_t>& cut, int64_t sign,
                 std::map<Dims, int64_t>& sums) {
  Dims corner(cut.size());
  for (size_t which = 0; which < size_t{1} << cut.size(); ++which) {
    int64_t value = sign;
    for (size_t i = 0; i < cut.size(); ++i) {
      const bool is_end = (which >> i & 1) != 0;
      corner[i] = box.offset[cut[i]] + (is_end ? box.size[cut[i]] : 0);
      if (is_end) value = -value;
    }
    sums[corner] += value;
  }
}

/// The chunks must tile the whole box: lie inside it, have its volume, and be disjoint. Comparing all pairs
/// is not needed for the last: how often chunks cover a place is the running sum, along every dimension, of
/// +1 and -1 at their corners, and that sum determines the corners. So the chunks cover every place exactly
/// once if the sums at their corners equal those of the whole.
void check_cover(const StoredTensor& t) {
  const int64_t whole = tensor::element_count(t.dims);
  int64_t volume = 0;
  for (const StoredTensor::Chunk& c : t.chunks) {
    base::require(c.box.offset.size() == t.dims.size() && c.box.size.size() == t.dims.size(),
                  "a chunk has another rank than its tensor");
    for (size_t d = 0; d < t.dims.size(); ++d) {
      base::require(c.box.offset[d] <= t.dims[d] && c.box.size[d] <= t.dims[d] - c.box.offset[d],
                    "a chunk reaches outside its tensor");
    }
    volume += c.box.elements();
    base::require(volume <= whole, "two chunks overlap");
  }
  base::require(volume == whole, "chunks hold ", volume, " of ", whole, " elements");
  if (whole == 0) return;
  const std::vector<size_t> cut = cut_dims(t);
  std::map<Dims, int64_t> sums;
  for (const StoredTensor::Chunk& c : t.chunks) {
    if (c.box.elements() > 0) add_corners(c.box, cut, 1, sums);
  }
  add_corners({Dims(t.dims.size(), 0), t.dims}, cut, -1, sums);
  const bool is_tiled =
      std::all_of(sums.begin(), sums.end(), [](const auto& sum) { return sum.second == 0; });
  base::require(is_tiled, "two chunks overlap");
}

}  // namespace

CheckpointReader::CheckpointReader(const std::string& directory) : directory_(directory) {
  const Json index = read_index(directory);
  step_ = index.at("step").as_int();
  meta_ = index.at("meta");
  for (const Json& entry : index.at("tensors").as_array()) {
    const std::string& name = entry.at("name").as_string();
    try {
      add_tensor(entry);
    } catch (const base::Error& e) {
      throw e.with("checkpoint '" + directory + "': tensor '" + name + "'");
    }
  }
  std::sort(tensors_.begin(), tensors_.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
}

void CheckpointReader::add_tensor(const Json& entry) {
  StoredTensor t;
  t.name = entry.at("name").as_string();
  t.dtype = tensor::dtype_from_name(entry.at("dtype").as_string());
  tensor::element_bytes(t.dtype);  // refuses packed types, as chunks are cut and joined by whole elements
  t.dims = dims_of(entry.at("shape"));
  for (const Json& one : entry.at("chunks").as_array()) {
    StoredTensor::Chunk c{.box = {dims_of(one.at("offset")), dims_of(one.at("size"))},
                          .file = one.at("file").as_string(),
                          .byte_offset = one.at("byte_offset").as_int(),
                          .bytes = one.at("bytes").as_int(),
                          .crc32c = parse_hex(one.at("crc32c").as_string())};
    auto& file = files_[c.file];
    if (file == nullptr) file = base::MappedFile::open(base::safe_join(directory_, c.file));
    const auto size = static_cast<int64_t>(file->size());
    base::require(
        c.byte_offset >= 0 && c.bytes >= 0 && c.byte_offset <= size && c.bytes <= size - c.byte_offset,
        "file '", c.file, "' is truncated: bytes ", c.byte_offset, " to ", c.byte_offset + c.bytes,
        " wanted, it has ", size);
    const int64_t wanted = tensor::bytes_of(t.dtype, c.box.elements());
    base::require(c.bytes == wanted, "a chunk holds ", c.bytes, " bytes, its size wants ", wanted);
    int64_t& taken = taken_bytes_[c.file];
    base::require(c.bytes <= size - taken, "chunks share bytes of file '", c.file, "', which has ", size);
    taken += c.bytes;
    t.chunks.push_back(std::move(c));
  }
  check_cover(t);
  tensors_.push_back(std::move(t));
}

const StoredTensor* CheckpointReader::find(const std::string& name) const {
  const auto at = std::lower_bound(tensors_.begin(), tensors_.end(), name,
                                   [](const StoredTensor& t, const std::string& n) { return t.name < n; });
  return at == tensors_.end() || at->name != name ? nullptr : &*at;
}

const std::byte* CheckpointReader::bytes_of(const StoredTensor::Chunk& chunk) const {
  return files_.at(chunk.file)->bytes().data() + chunk.byte_offset;
}

void CheckpointReader::verify(const StoredTensor& stored, const StoredTensor::Chunk& c) const {
  const uint32_t found = base::crc32c({bytes_of(c), static_cast<size_t>(c.bytes)});
  base::require(found == c.crc32c, "checkpoint '", directory_, "': tensor '", stored.name, "': file '",
                c.file, "' is corrupt: the checksum of bytes ", c.byte_offset, " to ",
                c.byte_offset + c.bytes, " differs");
}

void CheckpointReader::verify(const StoredTensor& stored) const {
  for (const StoredTensor::Chunk& c : stored.chunks) verify(stored, c);
}

void CheckpointReader::verify(int part, int parts) const {
  int number = 0;
  for (const StoredTensor& t : tensors_) {
    for (const StoredTensor::Chunk& c : t.chunks) {
      if (number++ % parts == part) verify(t, c);
    }
  }
}

namespace {

/// Checks that the boxes have the type of the local tensor and lie inside it at their offsets.
void check_places(const StoredTensor& stored, const std::vector<Box>& boxes, const std::vector<Dims>& offsets,
                  const Tensor& local) {
  bool fits = local.dtype() == stored.dtype;
  for (size_t b = 0; b < boxes.size() && fits; ++b) {
    const Dims& size = boxes[b].size;
    fits = size.size() == local.rank() && size.size() == stored.dims.size();
    for (size_t d = 0; d < size.size() && fits; ++d) fits = offsets[b][d] + size[d] <= local.dims()[d];
  }
  base::require(fits, "tensor '", stored.name, "' is ", tensor::name_of(stored.dtype),
                tensor::to_string(stored.dims), ", and does not fit into ", local.type().to_string());
}

}  // namespace

void CheckpointReader::read(const StoredTensor& stored, const std::vector<Box>& boxes, Tensor& local) const {
  const int64_t element_bytes = tensor::element_bytes(stored.dtype);
  const std::vector<Dims> offsets = local_offsets(boxes);
  check_places(stored, boxes, offsets, local);
  for (size_t b = 0; b < boxes.size(); ++b) {
    for (const StoredTensor::Chunk& chunk : stored.chunks) {
      const Box common = intersection(boxes[b], chunk.box);
      if (common.elements() == 0) continue;
      BoxPlace from{chunk.box.size, {}}, to{local.dims(), {}};
      for (size_t d = 0; d < common.size.size(); ++d) {
        from.offset.push_back(common.offset[d] - chunk.box.offset[d]);
        to.offset.push_back(common.offset[d] - boxes[b].offset[d] + offsets[b][d]);
      }
      const std::byte* source = bytes_of(chunk);
      std::byte* target = local.mutable_raw();
      for_runs(common.size, from, to, element_bytes, [&](int64_t at, int64_t put, int64_t bytes) {
        std::memcpy(target + put, source + at, static_cast<size_t>(bytes));
      });
    }
  }
}

Tensor CheckpointReader::read(const StoredTensor& stored) const {
  Tensor whole = Tensor::empty(stored.dtype, stored.dims);
  read(stored, {Box{Dims(stored.dims.size(), 0), stored.dims}}, whole);
  return whole;
}

Checkpoint load_checkpoint_meta(const std::string& directory) {
  const Json index = read_index(directory);
  return {index.at("step").as_int(), index.at("meta"), {}};
}

Checkpoint load_checkpoint(const std::string& directory) {
  const CheckpointReader reader(directory);
  reader.verify(0, 1);
  Checkpoint checkpoint{reader.step(), reader.meta(), {}};
  for (const StoredTensor& t : reader.tensors()) checkpoint.tensors.emplace_back(t.name, reader.read(t));
  return checkpoint;
}

}  // namespace trireme::train
