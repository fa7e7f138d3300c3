// Reading checkpoints: the index is checked first, then checksums, then boxes are put together from chunks.
#include <algorithm>
#include <cstring>

#include "base/crc32c.h"
#include "base/error.h"
#include "train/box_copy.h"
#include "train/checkpoint.h"
#include "train/checkpoint_reader.h"

namespace trireme::train {
namespace {

using base::Json;
using tensor::Box;
using tensor::Dims;
using tensor::Tensor;

constexpr base::JsonLimits kIndexLimits{
    .depth = 100, .size_bytes = size_t{1} << 30, .nan_and_infinity = true};

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

/// The chunks must tile the whole box: inside it, disjoint, and of the same volume.
void check_cover(const StoredTensor& t) {
  int64_t volume = 0;
  for (size_t i = 0; i < t.chunks.size(); ++i) {
    const Box& c = t.chunks[i].box;
    base::require(c.offset.size() == t.dims.size() && c.size.size() == t.dims.size(),
                  "a chunk has another rank than its tensor");
    for (size_t d = 0; d < t.dims.size(); ++d) {
      base::require(c.offset[d] <= t.dims[d] && c.size[d] <= t.dims[d] - c.offset[d],
                    "a chunk reaches outside its tensor");
    }
    volume += c.elements();
    for (size_t k = 0; k < i; ++k) {
      base::require(intersection(t.chunks[k].box, c).elements() == 0, "two chunks overlap");
    }
  }
  base::require(volume == tensor::element_count(t.dims), "chunks hold ", volume, " of ",
                tensor::element_count(t.dims), " elements");
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

void CheckpointReader::read(const StoredTensor& stored, const std::vector<Box>& boxes, Tensor& local) const {
  const int64_t element_bytes = tensor::bytes_of(stored.dtype, 1);
  const std::vector<Dims> offsets = local_offsets(boxes);
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
