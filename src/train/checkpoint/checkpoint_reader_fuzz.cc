// Fuzzes the index of a checkpoint, with its checksum corrected: any index opens or is refused, and the
// tensors of an index that opens are read completely. If the first byte is less than the number of element
// types, all tensors get that type, with the number of bytes it needs.
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/crc32c.h"
#include "base/error.h"
#include "base/text/json.h"
#include "tests/fuzz_bounds.h"
#include "train/checkpoint/checkpoint_reader.h"

namespace {

using namespace trireme;

/// A directory with one file of 256 bytes, removed at the end.
struct Directory {
  std::string path = "/tmp/trireme_fuzz_checkpoint." + std::to_string(getpid());
  Directory() {
    std::filesystem::create_directories(path);
    std::ofstream(path + "/bytes", std::ios::binary) << std::string(256, 'x');
  }
  ~Directory() { std::filesystem::remove_all(path); }
};

/// The index with all tensors of type `dtype`, and chunks of the length that this type needs.
base::Json with_type(const base::Json& index, tensor::DType dtype) {
  base::Json tensors = base::Json::array();
  for (base::Json entry : index.at("tensors").as_array()) {
    base::Json chunks = base::Json::array();
    for (base::Json chunk : entry.at("chunks").as_array()) {
      tensor::Dims size;
      for (const base::Json& d : chunk.at("size").as_array()) size.push_back(d.as_int());
      chunk.set("bytes", tensor::bytes_of(dtype, tensor::element_count(size)));
      chunks.push_back(std::move(chunk));
    }
    entry.set("dtype", std::string(tensor::name_of(dtype)));
    entry.set("chunks", std::move(chunks));
    tensors.push_back(std::move(entry));
  }
  base::Json changed = index;
  changed.set("tensors", std::move(tensors));
  return changed;
}

/// Makes the text an index with a valid checksum; returns it unchanged if it is not a JSON object.
std::string sealed(std::string_view text) {
  const base::JsonLimits limits{.depth = 100, .size_bytes = size_t{1} << 30, .nan_and_infinity = true};
  const bool has_type = !text.empty() && static_cast<uint8_t>(text[0]) < tensor::kDTypeCount;
  base::Json index = base::parse_json(text.substr(has_type ? 1 : 0), limits);
  if (has_type) index = with_type(index, static_cast<tensor::DType>(text[0]));
  if (!index.is_object()) return std::string(text);
  index.as_object().erase("index_crc32c");
  char digits[9];
  std::snprintf(digits, sizeof digits, "%08x", base::crc32c(index.dump({.nan_and_infinity = true})));
  index.as_object().push_back({"index_crc32c", base::Json(std::string(digits))});
  return index.dump({.nan_and_infinity = true});
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Directory kDirectory;
  const fuzz::BoundedWork bounded(size, {.fixed_peak_bytes = size_t{16} << 20, .peak_per_byte = 1024});
  try {
    std::ofstream(kDirectory.path + "/index.json", std::ios::binary)
        << sealed({reinterpret_cast<const char*>(data), size});
    const train::CheckpointReader reader(kDirectory.path);
    for (const train::StoredTensor& t : reader.tensors()) {
      if (tensor::element_count(t.dims) > 1 << 16) continue;
      if (reader.read(t).dims() != t.dims) std::abort();
    }
    reader.verify(0, 1);
  } catch (const base::Error& e) {
    if (e.code() == base::ErrorCode::internal) std::abort();
  }
  return 0;
}
