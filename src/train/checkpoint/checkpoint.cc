// Checkpoints on disk: writes them with a single commit point, lists and finds them.
#include "train/checkpoint/checkpoint.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <map>

#include "base/crc32c.h"
#include "base/error.h"
#include "base/files/file.h"
#include "train/files/box_copy.h"

namespace trireme::train {
namespace {

namespace fs = std::filesystem;
using base::Json;

constexpr int64_t kChunkBytes = 16 << 20;
constexpr size_t kPieceBytes = 8 << 20;  // per write call, which bounds the delay until a failure is seen

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::string hex(uint32_t value) {
  std::string text(8, '0');
  std::snprintf(text.data(), 9, "%08x", value);
  return text;
}

Json integers(const tensor::Dims& dims) { return base::JsonArray(dims.begin(), dims.end()); }

/// Writes the bytes and returns their checksum.
uint32_t write_bytes(OutputFile& file, std::span<const std::byte> rest) {
  uint32_t crc = 0;
  while (!rest.empty()) {
    const auto piece = rest.first(std::min(rest.size(), kPieceBytes));
    crc = base::crc32c(piece, crc);
    file.write(piece);
    rest = rest.subspan(piece.size());
  }
  return crc;
}

/// Groups the pieces, in file order, into shards of at most `shard_bytes`; a larger piece gets its own shard.
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

/// Writes a piece's bytes and adds an entry for each of its chunks. A large piece is cut along its first
/// dimension, so that the ranks that read it can divide the checksum work.
void write_piece(OutputFile& file, const std::string& name, const CheckpointPiece& piece, WrittenPart& part) {
  const tensor::Tensor& t = piece.content;
  const bool is_large = t.rank() > 0 && t.bytes() > kChunkBytes && t.bytes() % t.dims()[0] == 0;
  const int64_t rows = is_large ? t.dims()[0] : 1, row_bytes = t.bytes() / rows;
  const int64_t step = is_large ? std::max<int64_t>(1, kChunkBytes / row_bytes) : 1;
  for (int64_t row = 0; row < rows; row += step) {
    const int64_t end = std::min(rows, row + step), bytes = (end - row) * row_bytes;
    tensor::Box box = piece.box;
    if (is_large) box.offset[0] += row, box.size[0] = end - row;
    const uint32_t crc = write_bytes(file, {t.raw() + row * row_bytes, static_cast<size_t>(bytes)});
    part.chunks.push_back(Json::object({{"name", piece.name},
                                        {"dtype", tensor::name_of(t.dtype())},
                                        {"shape", integers(piece.dims)},
                                        {"chunk", Json::object({{"offset", integers(box.offset)},
                                                                {"size", integers(box.size)},
                                                                {"file", name},
                                                                {"byte_offset", part.bytes},
                                                                {"bytes", bytes},
                                                                {"crc32c", hex(crc)}})}}));
    part.bytes += bytes;
  }
}

int64_t write_text(FileOps& files, const std::string& path, std::string_view text) {
  const auto file = files.create(path);
  file->write(bytes_of(text));
  file->sync();
  return static_cast<int64_t>(text.size());
}

/// The chunks of all ranks grouped by tensor, with the tensors in the order of their names.
Json entries_of(const std::vector<WrittenPart>& parts) {
  struct Entry {
    Json dtype, shape, chunks = Json::array();
  };
  std::map<std::string, Entry> by_name;
  for (const WrittenPart& part : parts) {
    for (const Json& one : part.chunks.as_array()) {
      const std::string& name = one.at("name").as_string();
      Entry& entry = by_name[name];
      if (entry.dtype.is_null()) entry.dtype = one.at("dtype"), entry.shape = one.at("shape");
      base::check(entry.dtype == one.at("dtype") && entry.shape == one.at("shape"),
                  "ranks differ on the type or shape of '", name, "'");
      entry.chunks.push_back(one.at("chunk"));
    }
  }
  Json entries = Json::array();
  for (auto& [name, entry] : by_name) {
    entries.push_back(Json::object({{"name", name},
                                    {"dtype", std::move(entry.dtype)},
                                    {"shape", std::move(entry.shape)},
                                    {"chunks", std::move(entry.chunks)}}));
  }
  return entries;
}

bool is_checkpoint(const std::string& directory) { return base::file_exists(directory + "/index.json"); }

/// Tells a checkpoint from others of its step: the checksum of its index, which holds those of all tensors.
/// Empty if it cannot be read.
std::string identity_of(const std::string& directory) {
  try {
    return hex(base::crc32c(base::read_file(directory + "/index.json")));
  } catch (const base::Error&) {
    return {};
  }
}

/// The meta of `head`, which names its predecessor's identity too, if that lies under the root.
Json meta_of(const std::string& root, const Checkpoint& head) {
  Json meta = head.meta;
  const int64_t previous = meta.get_or<int64_t>("previous", -1);
  const std::string identity = previous < 0 ? "" : identity_of(root + "/" + checkpoint_name(previous));
  if (!identity.empty()) meta.set("previous_crc32c", identity);
  return meta;
}

/// Whether the checkpoint `name` says that it continues `before`, and not another one of that step: a run
/// that went on from an earlier step replaces checkpoints, and those behind them stay.
bool is_next(const std::string& root, const std::string& name, const std::string& before) {
  try {
    const Json meta = load_checkpoint_meta(root + "/" + name).meta;
    const int64_t previous = meta.get_or<int64_t>("previous", -1);
    if (previous < 0 || checkpoint_name(previous) != before) return false;
    const std::string identity = meta.get_or("previous_crc32c", "");  // older programs did not write it
    return identity.empty() || identity == identity_of(root + "/" + before);
  } catch (const base::Error&) {
    return false;  // corrupt, or removed meanwhile
  }
}

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

std::string read_pointer(const std::string& root, const std::string& pointer) {
  const std::string path = root + "/" + pointer;
  if (!fs::is_regular_file(path)) return {};
  std::string name = base::read_file(path, 4096);
  while (!name.empty() && (name.back() == '\n' || name.back() == ' ')) name.pop_back();
  return name;
}

std::vector<CheckpointPiece> whole_pieces(const model::NamedTensors& tensors) {
  std::vector<CheckpointPiece> pieces;
  for (const auto& [name, t] : tensors) {
    pieces.push_back({name, t.dims(), {tensor::Dims(t.rank(), 0), t.dims()}, t});
  }
  return pieces;
}

WrittenPart write_part(FileOps& files, const std::string& directory, const std::string& stem,
                       const std::vector<CheckpointPiece>& pieces, int64_t shard_bytes) {
  model::NamedTensors named;
  for (const CheckpointPiece& p : pieces) {
    const bool is_whole = p.box.size == p.dims;
    named.emplace_back(is_whole ? p.name : p.name + to_string(p.box), p.content);
  }
  WrittenPart all;
  int number = 0;
  for (const std::vector<size_t>& shard : shards_of(named, shard_bytes)) {
    std::array<char, 32> digits;
    std::snprintf(digits.data(), digits.size(), "-%05d", number++);
    const std::string name = stem + digits.data() + ".safetensors";
    const auto file = files.create(directory + "/" + name);
    const std::string header = model::safetensors_header(named, shard);
    file->write(bytes_of(header));
    WrittenPart part{.chunks = std::move(all.chunks), .bytes = static_cast<int64_t>(header.size())};
    for (const size_t i : shard) write_piece(*file, name, pieces[i], part);
    file->sync();
    all.chunks = std::move(part.chunks);
    all.bytes += part.bytes;
  }
  return all;
}

std::string growing_directory(const std::string& root, int64_t step) {
  return base::concat(root, "/.", checkpoint_name(step), ".tmp");
}

WriteResult commit_checkpoint(FileOps& files, const std::string& root, const Checkpoint& head,
                              const std::vector<WrittenPart>& parts) {
  const std::string name = checkpoint_name(head.step), final_path = root + "/" + name;
  const std::string growing = growing_directory(root, head.step);
  Json index = Json::object({{"format", "trireme-checkpoint"},
                             {"version", 1},
                             {"step", head.step},
                             {"meta", meta_of(root, head)},
                             {"tensors", entries_of(parts)}});
  const base::JsonDumpOptions exact{.nan_and_infinity = true};
  index.set("index_crc32c", hex(base::crc32c(index.dump(exact))));
  WriteResult result{final_path, 0, {}};
  for (const WrittenPart& part : parts) result.bytes += part.bytes;
  result.bytes +=
      write_text(files, growing + "/index.json", index.dump({.indent = 1, .nan_and_infinity = true}));
  files.sync_directory(growing);
  if (!fs::exists(final_path)) {
    files.rename(growing, final_path);  // the commit point
  } else if (!files.exchange(growing, final_path)) {
    files.remove_tree(final_path);
    files.rename(growing, final_path);
  }
  files.sync_directory(root);
  std::error_code ignored;
  fs::remove_all(growing, ignored);  // after an exchange: the previous content
  try {
    write_pointer(files, root, "latest", name);
  } catch (const base::Error& e) {
    result.pointer_error = e;
  }
  return result;
}

WriteResult write_checkpoint(FileOps& files, const std::string& root, const Checkpoint& head,
                             const std::vector<CheckpointPiece>& pieces, int64_t shard_bytes) {
  const std::string growing = growing_directory(root, head.step);
  files.make_directory(root);
  files.remove_tree(growing);
  try {
    files.make_directory(growing);
    return commit_checkpoint(files, root, head, {write_part(files, growing, "tensors", pieces, shard_bytes)});
  } catch (const base::Error& e) {
    std::error_code ignored;  // the rest has a hidden name; the next start removes it
    fs::remove_all(growing, ignored);
    throw e.with("checkpoint of step " + std::to_string(head.step));
  }
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

std::string newest_checkpoint(const std::string& root) {
  const std::vector<std::string> names = list_checkpoints(root);
  if (names.empty()) return {};
  auto newest = std::find(names.begin(), names.end(), read_pointer(root, "latest"));
  if (newest == names.end()) return names.back();
  for (auto later = newest + 1; later != names.end(); ++later) {
    if (is_next(root, *later, *newest)) newest = later;
  }
  return *newest;
}

bool has_checkpoint(const std::string& path) {
  // A directory with such a name may be something else, for example a model of a repository.
  return is_checkpoint(path) || fs::is_regular_file(path + "/latest") ||
         fs::is_regular_file(path + "/checkpoints/latest") ||
         !list_checkpoints(path + "/checkpoints").empty();
}

std::string find_checkpoint(const std::string& path) {
  if (is_checkpoint(path)) return path;
  for (const std::string& root : {path, path + "/checkpoints"}) {
    std::string name = read_pointer(root, "latest");
    if (name.empty()) name = newest_checkpoint(root);
    if (name.empty()) continue;
    const std::string directory = base::safe_join(root, name);
    if (is_checkpoint(directory)) return directory;
  }
  base::fail(base::ErrorCode::not_found, "no checkpoint at '", path,
             "': expected index.json, latest, or checkpoints/latest in it");
}

}  // namespace trireme::train
