// S3 and Google Cloud Storage through Arrow's file system classes.
#if TRIREME_ARROW
#include "data/store/object_store.h"

#include <arrow/filesystem/gcsfs.h>
#include <arrow/filesystem/s3fs.h>
#include <arrow/io/interfaces.h>
#include <arrow/result.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <mutex>
#include <vector>

#include "base/error.h"
#include "base/guarded.h"

namespace trireme::data {
namespace {

namespace afs = arrow::fs;
using base::ErrorCode;
using base::require;

constexpr double kConnectSeconds = 5;
constexpr double kSilentSeconds = 10;  // longest time without a byte of an answer
constexpr int64_t kMostRetries = 2;
constexpr double kGcsRetrySeconds = 30;

/// The error that a message of the stores' libraries means. By default, the store does not answer.
ErrorCode code_of(const std::string& message) {
  const auto says = [&](std::initializer_list<std::string_view> words) {
    return std::any_of(words.begin(), words.end(),
                       [&](std::string_view w) { return message.find(w) != std::string::npos; });
  };
  if (says({"NO_SUCH_KEY", "NO_SUCH_BUCKET", "RESOURCE_NOT_FOUND", "HTTP status 404", "Path does not exist",
            "does not exist", "NotFound", "Status(NOT_FOUND"}))
    return ErrorCode::not_found;
  if (says({"ACCESS_DENIED", "INVALID_ACCESS_KEY_ID", "SIGNATURE_DOES_NOT_MATCH", "HTTP status 403",
            "HTTP status 401", "HTTP status 400", "INVALID_CLIENT_TOKEN_ID", "Status(PERMISSION_DENIED",
            "Status(UNAUTHENTICATED", "Status(INVALID_ARGUMENT"}))
    return ErrorCode::invalid_argument;
  return ErrorCode::unavailable;
}

/// Throws the error of an operation on an object, with the object's URL.
void check(const arrow::Status& status, const std::string& url) {
  if (status.ok()) return;
  if (status.IsOutOfMemory())
    base::fail(ErrorCode::exhausted, "'", url, "': out of memory: ", status.message());
  const std::string message = status.message();
  base::fail(code_of(message), "'", url, "': ", message);
}

template <class T>
T take(arrow::Result<T> result, const std::string& url) {
  check(result.status(), url);
  return std::move(result).ValueUnsafe();
}

/// Retries errors that may be temporary, after a growing delay.
class Retries : public afs::S3RetryStrategy {
 public:
  bool ShouldRetry(const AWSErrorDetail& error, int64_t attempted) override {
    return error.should_retry && attempted < kMostRetries;
  }
  int64_t CalculateDelayBeforeNextRetry(const AWSErrorDetail&, int64_t attempted) override {
    constexpr int64_t kFirstMs = 100;
    return kFirstMs << std::min<int64_t>(attempted, 5);
  }
};

/// Starts the S3 library when the first URL needs it.
void start_s3() {
  static std::once_flag once;
  std::call_once(once, [] {
    afs::S3GlobalOptions options = afs::S3GlobalOptions::Defaults();
    options.log_level = afs::S3LogLevel::Off;  // errors already report failures
    check(afs::InitializeS3(options), "s3://");
  });
}

using Options = std::map<std::string, std::string>;

std::string unescaped(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool is_escape = text[i] == '%' && i + 2 < text.size() &&
                           std::isxdigit(static_cast<uint8_t>(text[i + 1])) &&
                           std::isxdigit(static_cast<uint8_t>(text[i + 2]));
    if (is_escape) {
      out += static_cast<char>(std::stoi(std::string(text.substr(i + 1, 2)), nullptr, 16));
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

Options parse_query(const ObjectUrl& url) {
  Options options;
  for (size_t at = 0; at < url.query.size();) {
    const size_t end = std::min(url.query.find('&', at), url.query.size());
    const std::string pair = url.query.substr(at, end - at);
    const size_t equals = std::min(pair.find('='), pair.size());
    const std::string name = pair.substr(0, equals);
    const bool is_known =
        name == "region" || name == "endpoint_override" || name == "scheme" || name == "anonymous";
    require(is_known, "URL has an unknown option: '", name,
            "'; there are region, endpoint_override, scheme, anonymous");
    options[name] = unescaped(equals < pair.size() ? pair.substr(equals + 1) : "");
    at = end + 1;
  }
  return options;
}

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// "http://host:9000" as a scheme and "host:9000"; without a scheme, `scheme` stays.
void set_endpoint(std::string endpoint, std::string& scheme, std::string& to) {
  const size_t colon = endpoint.find("://");
  if (colon != std::string::npos) {
    scheme = endpoint.substr(0, colon);
    endpoint = endpoint.substr(colon + 3);
  }
  while (endpoint.ends_with('/')) endpoint.pop_back();
  to = endpoint;
}

std::shared_ptr<afs::FileSystem> open_s3(const Options& wanted) {
  start_s3();
  const auto option = [&](const char* name) {
    const auto at = wanted.find(name);
    return at == wanted.end() ? std::string() : at->second;
  };
  afs::S3Options options =
      option("anonymous") == "true" ? afs::S3Options::Anonymous() : afs::S3Options::Defaults();
  options.region = option("region");
  for (const char* name : {"AWS_REGION", "AWS_DEFAULT_REGION"}) {
    if (options.region.empty()) options.region = environment(name);
  }
  std::string endpoint = option("endpoint_override");
  for (const char* name : {"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"}) {
    if (endpoint.empty()) endpoint = environment(name);
  }
  set_endpoint(endpoint, options.scheme, options.endpoint_override);
  if (!option("scheme").empty()) options.scheme = option("scheme");
  // Stores other than Amazon's have no regions, but signatures need the name of one.
  if (options.region.empty() && !options.endpoint_override.empty()) options.region = "us-east-1";
  options.connect_timeout = kConnectSeconds;
  options.request_timeout = kSilentSeconds;
  options.retry_strategy = std::make_shared<Retries>();
  options.background_writes = false;  // errors must be reported by the write that causes them
  auto system = afs::S3FileSystem::Make(options);
  // The library must be finalized before the process ends. That needs statics which the first client has
  // created, and those are destroyed only after exit handlers that were registered later.
  [[maybe_unused]] static const int registered = std::atexit([] { (void)afs::EnsureS3Finalized(); });
  return take(std::move(system), "s3://");
}

std::shared_ptr<afs::FileSystem> open_gcs(const Options& wanted) {
  const auto option = [&](const char* name) {
    const auto at = wanted.find(name);
    return at == wanted.end() ? std::string() : at->second;
  };
  afs::GcsOptions options =
      option("anonymous") == "true" ? afs::GcsOptions::Anonymous() : afs::GcsOptions::Defaults();
  std::string endpoint = option("endpoint_override");
  if (endpoint.empty()) endpoint = environment("STORAGE_EMULATOR_HOST");
  if (!endpoint.empty()) set_endpoint(endpoint, options.scheme, options.endpoint_override);
  if (!option("scheme").empty()) options.scheme = option("scheme");
  options.retry_limit_seconds = kGcsRetrySeconds;
  return take(afs::GcsFileSystem::Make(options), "gs://");
}

class ObjectFile : public StoreFile {
 public:
  ObjectFile(std::shared_ptr<arrow::io::RandomAccessFile> file, std::string url)
      : file_(std::move(file)), url_(std::move(url)), size_(take(file_->GetSize(), url_)) {}

  int64_t size() const override { return size_; }
  int64_t block_bytes() const override { return int64_t{4} << 20; }
  void read(int64_t offset, std::span<std::byte> out) const override {
    const auto bytes = static_cast<int64_t>(out.size());
    require(offset >= 0 && offset <= size_ && bytes <= size_ - offset, "read past the end of '", url_,
            "': byte ", offset, ", ", bytes, " bytes, size ", size_);
    while (bytes > 0 && !out.empty()) {
      const int64_t got = take(file_->ReadAt(offset, static_cast<int64_t>(out.size()), out.data()), url_);
      require(got > 0, "object became shorter while it was read: '", url_, "', byte ", offset);
      out = out.subspan(static_cast<size_t>(got));
      offset += got;
    }
  }

 private:
  std::shared_ptr<arrow::io::RandomAccessFile> file_;
  std::string url_;
  int64_t size_;
};

using StreamPtr = std::shared_ptr<arrow::io::OutputStream>;

/// Keeps a stream as it is until the process ends: one that completes its upload when it is closed or
/// destroyed.
void leave_open(StreamPtr stream) {
  static auto* const left = new base::Guarded<std::vector<StreamPtr>>;
  left->with([&](std::vector<StreamPtr>& streams) { streams.push_back(std::move(stream)); });
}

/// An upload in parts, which becomes visible only when it is complete.
class ObjectWriter : public StoreWriter {
 public:
  ObjectWriter(StreamPtr stream, std::string url)
      : stream_(std::move(stream)), url_(std::move(url)), can_abort_(parse_object_url(url_).scheme == "s3") {}
  ~ObjectWriter() override {
    if (!stream_) return;
    if (can_abort_) {
      (void)stream_->Abort();
    } else {
      // Arrow's streams of gs:// know no Abort: any end completes the upload with the bytes so far. Left
      // alone, an upload is forgotten by the store after a week; here it costs a buffer of 256 KiB.
      leave_open(std::move(stream_));
    }
  }
  ObjectWriter(const ObjectWriter&) = delete;
  ObjectWriter& operator=(const ObjectWriter&) = delete;

  void write(std::string_view bytes) override {
    base::check(stream_ != nullptr, "write after commit: '", url_, "'");
    check(stream_->Write(bytes.data(), static_cast<int64_t>(bytes.size())), url_);
    written_bytes_ += static_cast<int64_t>(bytes.size());
  }
  int64_t written_bytes() const override { return written_bytes_; }
  void commit() override {
    base::check(stream_ != nullptr, "commit called twice: '", url_, "'");
    check(stream_->Close(), url_);
    stream_.reset();
  }

 private:
  StreamPtr stream_;
  std::string url_;
  bool can_abort_;
  int64_t written_bytes_ = 0;
};

class ObjectStore : public Store {
 public:
  ObjectStore(std::string scheme, std::shared_ptr<afs::FileSystem> system)
      : scheme_(std::move(scheme)), system_(std::move(system)) {}

  std::shared_ptr<const StoreFile> open(const std::string& path) const override {
    return std::make_shared<ObjectFile>(take(system_->OpenInputFile(key_of(path)), path), path);
  }
  std::unique_ptr<StoreWriter> create(const std::string& path) const override {
    return make_object_writer(take(system_->OpenOutputStream(key_of(path), nullptr), path), path);
  }
  std::vector<StoreEntry> list(const std::string& directory) const override {
    const ObjectUrl url = parse_object_url(directory);
    afs::FileSelector selector;
    selector.base_dir = key_of(directory);
    // In gs://, Arrow lists a directory without an object of its own only through the objects below it.
    selector.recursive = scheme_ == "gs";
    std::map<std::string, StoreEntry> entries;  // by key
    for (const afs::FileInfo& info : take(system_->GetFileInfo(selector), directory)) {
      const bool is_known = info.type() == afs::FileType::Directory || info.type() == afs::FileType::File;
      if (!is_known || info.path().size() <= selector.base_dir.size()) continue;
      const size_t end = info.path().find('/', selector.base_dir.size() + 1);
      const bool is_directory = info.type() == afs::FileType::Directory || end != std::string::npos;
      const std::string key = info.path().substr(0, end);
      entries.try_emplace(key, StoreEntry{url.with_key(key), is_directory ? 0 : info.size(), is_directory});
    }
    std::vector<StoreEntry> list;
    for (auto& [key, entry] : entries) list.push_back(std::move(entry));
    std::sort(list.begin(), list.end(),
              [](const StoreEntry& a, const StoreEntry& b) { return a.path < b.path; });
    return list;
  }
  bool exists(const std::string& path) const override { return type_of(path) != afs::FileType::NotFound; }
  bool is_directory(const std::string& path) const override {
    return type_of(path) == afs::FileType::Directory;
  }
  void remove(const std::string& path) const override {
    const arrow::Status status = system_->DeleteFile(key_of(path));
    if (!status.ok() && code_of(status.message()) != ErrorCode::not_found) check(status, path);
  }
  bool is_local() const override { return false; }

 private:
  std::string key_of(const std::string& path) const {
    ObjectUrl url = parse_object_url(path);
    base::check(url.scheme == scheme_, "'", path, "' is asked of a store of ", scheme_);
    while (url.key.ends_with('/')) url.key.pop_back();
    return url.key;
  }
  afs::FileType type_of(const std::string& path) const {
    return take(system_->GetFileInfo(key_of(path)), path).type();
  }

  std::string scheme_;
  std::shared_ptr<afs::FileSystem> system_;
};

}  // namespace

std::unique_ptr<StoreWriter> make_object_writer(StreamPtr stream, const std::string& url) {
  return std::make_unique<ObjectWriter>(std::move(stream), url);
}

std::shared_ptr<const Store> object_store_of(const ObjectUrl& url) {
  // A client holds connections and looks up credentials, so all users of the same options share one.
  static base::Guarded<std::map<std::string, std::weak_ptr<const Store>>> stores;
  const Options options = parse_query(url);
  return stores.with([&](auto& known) -> std::shared_ptr<const Store> {
    std::weak_ptr<const Store>& place = known[url.scheme + "?" + url.query];
    if (std::shared_ptr<const Store> store = place.lock()) return store;
    const auto store = std::make_shared<const ObjectStore>(
        url.scheme, url.scheme == "s3" ? open_s3(options) : open_gcs(options));
    place = store;
    return store;
  });
}

}  // namespace trireme::data
#endif
