// Stands in for what needs Arrow in builds without it.
#if !TRIREME_ARROW
#include "base/error.h"
#include "data/rows/original.h"
#include "data/rows/packed_bytes.h"
#include "data/rows/row_formats.h"
#include "data/rows/writers.h"

namespace trireme::data {
namespace {

constexpr const char* kAdvice = "build with Arrow C++ (./dev setup installs it), or convert to JSON lines";

}  // namespace

std::unique_ptr<RowFile> open_parquet_rows(RowSource source) {
  base::fail_unsupported("this build reads no Parquet: '", source.path, "'; ", kAdvice);
}

std::unique_ptr<RowFile> open_arrow_rows(RowSource source) {
  base::fail_unsupported("this build reads no Arrow: '", source.path, "'; ", kAdvice);
}

std::unique_ptr<RowWriter> make_arrow_writer(StoreWriter&, const std::vector<Field>&,
                                             const RowWriterOptions& options) {
  base::fail_unsupported("this build writes no files of format ", options.format, "; ", kAdvice);
}

std::unique_ptr<ByteStream> open_zstd(std::unique_ptr<ByteStream>, size_t) {
  base::fail_unsupported("this build unpacks no zstd; ", kAdvice, " packed by gzip");
}

Original slice_original(const Original&, int64_t, int64_t) { return nullptr; }
Original join_originals(const std::vector<Original>&) { return nullptr; }
std::string original_json(const Original&, int64_t) { base::fail_unsupported("no Arrow; ", kAdvice); }

}  // namespace trireme::data
#endif
