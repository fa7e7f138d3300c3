// Stores the files of the API's clients.
#include "serve/jobs/file_store.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/files/directory.h"
#include "base/files/file.h"
#include "base/keyed_hash.h"
#include "serve/access/tenants.h"

namespace trireme::serve {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFileEnding = ".json";
constexpr size_t kIdDigits = 24;
constexpr size_t kMostMeta = 64 << 10;
constexpr int64_t kMostFiles = 10'000;  // each file, however small, takes two directory entries

/// Bytes of the files in a directory and below it. What goes meanwhile counts as nothing.
int64_t bytes_below(const std::string& directory) {
  int64_t bytes = 0;
  std::error_code error;
  for (const std::string& name : base::names_in(directory, error)) {
    const std::string path = directory + "/" + name;
    if (fs::is_directory(fs::symlink_status(path, error))) {
      bytes += bytes_below(path);
      continue;
    }
    const uintmax_t size = fs::file_size(path, error);
    if (!error) bytes += static_cast<int64_t>(size);
  }
  return bytes;
}

[[noreturn]] void fail_unknown_file(const std::string& id) {
  base::fail(base::ErrorCode::not_found, "No such File object: ", id.substr(0, 64));
}

}  // namespace

std::string new_id(std::string_view kind) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  const auto key = base::KeyedHash::random_key();
  std::string id(kind);
  for (size_t i = 0; i < kIdDigits; ++i) id += kDigits[(key[i / 16] >> (4 * (i % 16))) & 15];
  return id;
}

bool is_id(std::string_view text, std::string_view kind) {
  if (!text.starts_with(kind) || text.size() != kind.size() + kIdDigits) return false;
  return text.find_first_not_of("0123456789abcdef", kind.size()) == std::string_view::npos;
}

bool is_half_written(std::string_view name) { return name.find(".tmp.") != std::string_view::npos; }

base::Json StoredFile::json() const {
  return base::Json::object({{"id", id},
                             {"object", "file"},
                             {"bytes", bytes},
                             {"created_at", created_s},
                             {"expires_at", base::Json()},
                             {"filename", name},
                             {"purpose", purpose},
                             {"status", "processed"}});
}

FileStore::FileStore(std::string directory, std::string beside, int64_t most_bytes)
    : directory_(std::move(directory)), beside_(std::move(beside)), most_bytes_(most_bytes) {
  std::error_code error;
  fs::create_directories(directory_, error);
  if (error)
    base::fail(base::ErrorCode::unavailable, "cannot create the directory '", directory_,
               "': ", error.message());
  // Content without a JSON file was left incomplete when the server ended.
  for (const std::string& name : base::names_in(directory_, error)) {
    const bool is_lost =
        is_id(name, kFileKind) && !base::file_exists(path_of(name) + std::string(kFileEnding));
    if (is_lost || is_half_written(name)) fs::remove(path_of(name), error);
  }
}

void FileStore::write(const StoredFile& file) const {
  base::Json meta = file.json();
  meta.set("tenant", file.tenant);
  base::write_file_atomic(path_of(file.id) + std::string(kFileEnding), meta.dump());
}

StoredFile FileStore::add(std::string name, std::string purpose, const std::string& tenant,
                          std::string_view content, int64_t now_s) {
  const std::lock_guard lock(mutex_);
  StoredFile file{.id = new_id(kFileKind),
                  .name = std::move(name),
                  .purpose = std::move(purpose),
                  .bytes = static_cast<int64_t>(content.size()),
                  .created_s = now_s,
                  .tenant = tenant};
  const Kept kept = kept_now();
  if (file.bytes > most_bytes_ - kept.bytes || kept.files >= kMostFiles) {
    base::fail(base::ErrorCode::exhausted, kept.files, " files of ", kept.bytes, " bytes are kept, and ",
               kMostFiles, " of ", most_bytes_, " are allowed: delete some (--files-limit)");
  }
  base::write_file_atomic(path_of(file.id), content);
  write(file);
  return file;
}

StoredFile FileStore::adopt(const std::string& path, StoredFile file) {
  const std::lock_guard lock(mutex_);
  file.bytes = static_cast<int64_t>(fs::file_size(path));
  fs::rename(path, path_of(file.id));
  write(file);
  return file;
}

std::optional<StoredFile> FileStore::read(const std::string& id) const {
  if (!is_id(id, kFileKind) || !base::file_exists(path_of(id) + std::string(kFileEnding)))
    return std::nullopt;
  const base::Json meta =
      base::parse_json(base::read_file(path_of(id) + std::string(kFileEnding), kMostMeta));
  return StoredFile{.id = id,
                    .name = meta.at("filename").as_string(),
                    .purpose = meta.at("purpose").as_string(),
                    .bytes = meta.at("bytes").as_int(),
                    .created_s = meta.at("created_at").as_int(),
                    .tenant = meta.at("tenant").as_string()};
}

StoredFile FileStore::find(const std::string& id, const std::string& tenant) const {
  const std::lock_guard lock(mutex_);
  std::optional<StoredFile> file = read(id);
  if (!file || !Tenants::is_owner(tenant, file->tenant)) fail_unknown_file(id);
  return *std::move(file);
}

std::vector<StoredFile> FileStore::list(const std::string& tenant) const {
  const std::lock_guard lock(mutex_);
  std::vector<StoredFile> files;
  std::error_code error;
  for (const std::string& name : base::names_in(directory_, error)) {
    if (!is_id(name, kFileKind)) continue;
    std::optional<StoredFile> file = read(name);
    if (file && Tenants::is_owner(tenant, file->tenant)) files.push_back(*std::move(file));
  }
  std::sort(files.begin(), files.end(), [](const StoredFile& a, const StoredFile& b) {
    return std::pair(b.created_s, std::string_view(a.id)) < std::pair(a.created_s, std::string_view(b.id));
  });
  return files;
}

FileStore::Kept FileStore::kept_now() const {
  Kept kept{.bytes = bytes_below(directory_) + bytes_below(beside_)};
  std::error_code error;
  for (const std::string& name : base::names_in(directory_, error))
    kept.files += is_id(name, kFileKind) ? 1 : 0;
  return kept;
}

bool FileStore::has_room() const {
  const Kept kept = kept_now();
  return kept.bytes < most_bytes_ && kept.files < kMostFiles;
}

void FileStore::remove(const std::string& id, const std::string& tenant) {
  const std::lock_guard lock(mutex_);
  const std::optional<StoredFile> file = read(id);
  if (!file || !Tenants::is_owner(tenant, file->tenant)) fail_unknown_file(id);
  std::error_code error;
  // Removed first: content without it has no owner.
  fs::remove(path_of(id) + std::string(kFileEnding), error);
  fs::remove(path_of(id), error);
}

}  // namespace trireme::serve
