// Checkpoints on disk: writing with one commit point, listing, and finding them.
#include "train/checkpoint.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "base/crc32c.h"
#include "base/error.h"
#include "base/file.h"

namespace trireme::train {
namespace {

namespace fs = std::filesystem;
using base::Json;

constexpr size_t kPieceBytes = 8 << 20;  // of one write call: bounds how long a failure stays unseen

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::string hex(uint32_t value) {
  std::string text(8, '0');
  std::snprintf(text.data(), 9, "%08x", value);
  return text;
}

Json integers(const tensor::Dims& dims) { return base::JsonArray(dims.begin(), dims.end()); }

/// Writes one tensor's bytes; gives their checksum.
uint32_t write_tensor(OutputFile& file, const tensor::Tensor& t) {
  std::span<const std::byte> rest(t.raw(), static_cast<size_t>(t.bytes()));
  uint32_t crc = 0;
  while (!rest.empty()) {
    const auto piece = rest.first(std::min(rest.size(), kPieceBytes));
    crc = base::crc32c(piece, crc);
    file.write(piece);
    rest = rest.subspan(piece.size());
  }
  return crc;
}

/// Cuts the tensors, in file order, into runs of at most `shard_bytes` (a larger tensor stands alone).
std::vector<std::vector<size_t>> shards_of(const model::NamedTensors& tensors, int64_t shard_bytes) {
  std::vector<std::vector<size_t>> shards;
  int64_t used = 0;
  for (const size_t i : model::safetensors_order(tensors)) {
    const int64_t bytes = tensors[i].second.bytes();
    if (shards.empty() || (used + bytes > shard_bytes && used > 0)) {
      shards.emplace_back();
      used = 0;
    }
    shards.back().push_back(i);
    used += bytes;
  }
  return shards;
}

/// Writes one file of tensors (name: the part of its path that the index holds) and adds their index
/// entries; gives the bytes written.
int64_t write_shard(OutputFile& file, const std::string& name, const model::NamedTensors& tensors,
                    std::span<const size_t> order, Json& entries) {
  const std::string header = model::safetensors_header(tensors, order);
  file.write(bytes_of(header));
  auto offset = static_cast<int64_t>(header.size());
  for (const size_t i : order) {
    const auto& [tensor_name, t] = tensors[i];
    const uint32_t crc = write_tensor(file, t);
    Json chunk = Json::object({{"offset", integers(tensor::Dims(t.rank(), 0))},
                               {"size", integers(t.dims())},
                               {"file", name},
                               {"byte_offset", offset},
                               {"bytes", t.bytes()},
                               {"crc32c", hex(crc)}});
    entries.push_back(Json::object({{"name", tensor_name},
                                    {"dtype", tensor::name_of(t.dtype())},
                                    {"shape", integers(t.dims())},
                                    {"chunks", Json::array({std::move(chunk)})}}));
    offset += t.bytes();
  }
  file.sync();
  return offset;
}

int64_t write_text(FileOps& files, const std::string& path, std::string_view text) {
  const auto file = files.create(path);
  file->write(bytes_of(text));
  file->sync();
  return static_cast<int64_t>(text.size());
}

/// Fills a directory that nobody knows yet.
int64_t fill_directory(FileOps& files, const std::string& directory, const Checkpoint& checkpoint,
                       int64_t shard_bytes) {
  Json entries = Json::array();
  int64_t bytes = 0;
  int number = 0;
  for (const std::vector<size_t>& shard : shards_of(checkpoint.tensors, shard_bytes)) {
    std::string name(64, '\0');
    name.resize(static_cast<size_t>(std::snprintf(name.data(), 64, "tensors-%05d.safetensors", number++)));
    const auto file = files.create(directory + "/" + name);
    bytes += write_shard(*file, name, checkpoint.tensors, shard, entries);
  }
  Json index = Json::object({{"format", "trireme-checkpoint"},
                             {"version", 1},
                             {"step", checkpoint.step},
                             {"meta", checkpoint.meta},
                             {"tensors", std::move(entries)}});
  const base::JsonDumpOptions exact{.nan_and_infinity = true};
  index.set("index_crc32c", hex(base::crc32c(index.dump(exact))));
  bytes += write_text(files, directory + "/index.json", index.dump({.indent = 1, .nan_and_infinity = true}));
  files.sync_directory(directory);
  return bytes;
}

bool is_checkpoint(const std::string& directory) { return base::file_exists(directory + "/index.json"); }

}  // namespace

const tensor::Tensor* Checkpoint::find(std::string_view name) const {
  for (const auto& [key, t] : tensors) {
    if (key == name) return &t;
  }
  return nullptr;
}

int64_t Checkpoint::bytes() const {
  int64_t sum = 0;
  for (const auto& [name, t] : tensors) sum += t.bytes();
  return sum;
}

std::string checkpoint_name(int64_t step) {
  std::string name(40, '\0');
  name.resize(
      static_cast<size_t>(std::snprintf(name.data(), 40, "step-%08lld", static_cast<long long>(step))));
  return name;
}

void write_pointer(FileOps& files, const std::string& root, const std::string& pointer,
                   const std::string& name) {
  const std::string temporary = root + "/." + pointer + ".tmp";
  write_text(files, temporary, name + "\n");
  files.rename(temporary, root + "/" + pointer);
  files.sync_directory(root);
}

WriteResult write_checkpoint(FileOps& files, const std::string& root, const Checkpoint& checkpoint,
                             int64_t shard_bytes) {
  const std::string name = checkpoint_name(checkpoint.step);
  const std::string final_path = root + "/" + name;
  const std::string temporary = base::concat(root, "/.", name, ".tmp.", ::getpid());
  files.make_directory(root);
  files.remove_tree(temporary);
  WriteResult result{final_path, 0};
  try {
    files.make_directory(temporary);
    result.bytes = fill_directory(files, temporary, checkpoint, shard_bytes);
    if (!fs::exists(final_path)) {
      files.rename(temporary, final_path);  // the commit point
    } else if (!files.exchange(temporary, final_path)) {
      files.remove_tree(final_path);
      files.rename(temporary, final_path);
    }
    files.sync_directory(root);
  } catch (const base::Error& e) {
    std::error_code ignored;  // what is left has a hidden name and is removed at the next start
    fs::remove_all(temporary, ignored);
    throw e.with("checkpoint of step " + std::to_string(checkpoint.step));
  }
  std::error_code ignored;
  fs::remove_all(temporary, ignored);  // after an exchange: what was there before
  write_pointer(files, root, "latest", name);
  return result;
}

std::vector<std::string> list_checkpoints(const std::string& root) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(root, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("step-") && is_checkpoint(entry.path().string())) names.push_back(name);
  }
  std::sort(names.begin(), names.end(), [](const std::string& a, const std::string& b) {
    return a.size() != b.size() ? a.size() < b.size() : a < b;
  });
  return names;
}

bool has_checkpoint(const std::string& path) {
  return is_checkpoint(path) || base::file_exists(path + "/latest") ||
         base::file_exists(path + "/checkpoints/latest");
}

std::string find_checkpoint(const std::string& path) {
  if (is_checkpoint(path)) return path;
  for (const std::string& root : {path, path + "/checkpoints"}) {
    if (!base::file_exists(root + "/latest")) continue;
    std::string name = base::read_file(root + "/latest", 4096);
    while (!name.empty() && (name.back() == '\n' || name.back() == ' ')) name.pop_back();
    const std::string directory = base::safe_join(root, name);
    if (is_checkpoint(directory)) return directory;
  }
  base::fail(base::ErrorCode::not_found, "no checkpoint at '", path,
             "': expected index.json, latest, or checkpoints/latest in it");
}

}  // namespace trireme::train
