// Opens cuBLASLt at run time; measures its algorithms and records which is fastest.
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <limits>

#include <fcntl.h>

#include "backend/cuda/device/cuda_check.h"
#include "backend/cuda/dense/launch_timer.cuh"
#include "backend/cuda/dense/toolkit_gemm.cuh"
#include "base/error.h"
#include "base/files/file.h"
#include "base/text/json.h"

namespace trireme::cuda {

CublasLt::CublasLt(int ordinal) {
  library_.find(matmul, "cublasLtMatmul");
  library_.find(heuristic, "cublasLtMatmulAlgoGetHeuristic");
  library_.find(check, "cublasLtMatmulAlgoCheck");
  library_.find(get_config, "cublasLtMatmulAlgoConfigGetAttribute");
  library_.find(init_desc, "cublasLtMatmulDescInit_internal");
  library_.find(set_desc, "cublasLtMatmulDescSetAttribute");
  library_.find(init_layout, "cublasLtMatrixLayoutInit_internal");
  library_.find(set_layout, "cublasLtMatrixLayoutSetAttribute");
  library_.find(init_preference, "cublasLtMatmulPreferenceInit_internal");
  library_.find(set_preference, "cublasLtMatmulPreferenceSetAttribute");
  library_.find(create_, "cublasLtCreate");
  library_.find(destroy_, "cublasLtDestroy");
  library_.find(version_, "cublasLtGetVersion");
  library_.find(status_name_, "cublasLtGetStatusName");
  check_cuda(cudaSetDevice(ordinal), "choosing a GPU");
  require(create_(&handle_), "starting the library");
  cudaDeviceProp properties{};
  check_cuda(cudaGetDeviceProperties(&properties, ordinal), "reading the properties of a GPU");
  int driver = 0;
  check_cuda(cudaDriverGetVersion(&driver), "reading the driver's version");
  device_key_ = base::concat(properties.name, " driver ", driver, " cublasLt ", version_());
}

CublasLt::~CublasLt() {
  if (handle_ != nullptr) destroy_(handle_);
}

void CublasLt::require(cublasStatus_t status, const char* what) const {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  const bool memory = status == CUBLAS_STATUS_ALLOC_FAILED;
  base::fail(memory ? base::ErrorCode::exhausted : base::ErrorCode::unavailable, "cuBLASLt: ", what, ": ",
             status_name_(status));
}

namespace {

std::string hex_of(const cublasLtMatmulAlgo_t& algo) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(&algo);
  std::string out;
  for (size_t i = 0; i < sizeof(algo); ++i) {
    out += "0123456789abcdef"[bytes[i] >> 4];
    out += "0123456789abcdef"[bytes[i] & 15];
  }
  return out;
}

/// Returns false if the text does not encode an algorithm.
bool read_hex(const std::string& text, cublasLtMatmulAlgo_t& algo) {
  auto* bytes = reinterpret_cast<unsigned char*>(&algo);
  if (text.size() != 2 * sizeof(algo)) return false;
  auto digit = [](char c) {
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= '0' && c <= '9' ? c - '0' : -1;
  };
  for (size_t i = 0; i < sizeof(algo); ++i) {
    const int high = digit(text[2 * i]), low = digit(text[2 * i + 1]);
    if (high < 0 || low < 0) return false;
    bytes[i] = static_cast<unsigned char>(high * 16 + low);
  }
  return true;
}

/// Milliseconds of each algorithm on one product of the trial; infinity if it cannot be launched.
std::vector<float> times_of(LaunchTimer& timer, const GemmTrial& trial, const GemmTrial::Launch& launch) {
  std::vector<float> ms;
  for (const cublasLtMatmulAlgo_t& algo : trial.algos) {
    try {
      ms.push_back(timer.median_ms([&](cudaStream_t queue) { launch(queue, algo); }));
    } catch (const base::Error&) {
      cudaGetLastError();  // clears the error of the failed launch
      ms.push_back(std::numeric_limits<float>::infinity());
    }
  }
  return ms;
}

/// The algorithm that is best over all products of the trial; the first if none can be launched.
GemmChoice measure(const GemmTrial& trial) {
  LaunchTimer timer;
  std::vector<float> scores(trial.algos.size(), 0.0f);
  for (const GemmTrial::Launch& launch : trial.launches) {
    const std::vector<float> ms = times_of(timer, trial, launch);
    const float least = *std::min_element(ms.begin(), ms.end());
    for (size_t i = 0; i < ms.size(); ++i) scores[i] += ms[i] / least;
  }
  GemmChoice best{trial.algos.at(0)};
  float best_score = std::numeric_limits<float>::infinity();
  for (size_t i = 0; i < scores.size(); ++i) {
    if (scores[i] < best_score) best_score = scores[i], best.algo = trial.algos[i];  // false for NaN
  }
  return best;
}

/// A file that only one process at a time holds open.
class LockedFile {
 public:
  explicit LockedFile(const std::string& path)
      : fd_(::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644)) {
    if (fd_ >= 0) ::flock(fd_, LOCK_EX);
  }
  ~LockedFile() {
    if (fd_ >= 0) ::close(fd_);
  }
  LockedFile(const LockedFile&) = delete;
  LockedFile& operator=(const LockedFile&) = delete;
  bool is_open() const { return fd_ >= 0; }
  /// If the write fails, the next process measures again.
  void append(const std::string& line) {
    if (::write(fd_, line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
      // Readers skip an incomplete line.
    }
  }

 private:
  int fd_;
};

}  // namespace

GemmChoices::GemmChoices(std::string file, std::string device_key)
    : file_(std::move(file)), device_key_(std::move(device_key)) {
  lines_.with([&](Lines& lines) { read(lines); });
}

void GemmChoices::read(Lines& lines) const {
  if (file_.empty() || !base::file_exists(file_)) return;
  const std::string text = base::read_file(file_);
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    at = end + 1;
    try {
      const base::Json entry = base::parse_json(line);
      GemmChoice choice;
      if (entry.at("device").as_string() != device_key_ ||
          !read_hex(entry.at("algo").as_string(), choice.algo))
        continue;
      lines.emplace(entry.at("product").as_string(), choice);  // the first line of a product is valid
    } catch (const base::Error&) {
      // The line is incomplete or of another version: the product is measured again.
    }
  }
}

GemmChoice GemmChoices::publish(const std::string& key, const GemmChoice& mine) const {
  if (file_.empty()) return mine;
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(file_).parent_path(), ignored);
  LockedFile file(file_);
  if (!file.is_open()) return mine;
  Lines now;
  read(now);
  if (const auto at = now.find(key); at != now.end()) return at->second;
  const base::Json entry =
      base::Json::object({{"device", device_key_}, {"product", key}, {"algo", hex_of(mine.algo)}});
  file.append(entry.dump() + "\n");
  return mine;
}

GemmChoice GemmChoices::get(const std::string& key, const std::function<GemmTrial()>& make_trial) const {
  // The lock is held while measuring, because two measurements at once would disturb each other.
  return lines_.with([&](Lines& lines) {
    if (const auto at = lines.find(key); at != lines.end()) return at->second;
    const GemmChoice choice = publish(key, measure(make_trial()));
    lines.emplace(key, choice);
    return choice;
  });
}

}  // namespace trireme::cuda
