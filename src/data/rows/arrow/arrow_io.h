// Our stores as Arrow's files. Arrow's own headers stay in sources: its types are only named here.
#pragma once

#include <memory>
#include <optional>

#include "base/error.h"
#include "base/guarded.h"
#include "data/store/store.h"

namespace arrow {
class Status;
}  // namespace arrow
namespace arrow::io {
class OutputStream;
class RandomAccessFile;
}  // namespace arrow::io

namespace trireme::data {

/// What a store threw inside of a call of Arrow, which knows no exceptions. Any thread.
class StoreTrouble {
 public:
  void keep(const base::Error& error);
  /// Throws what was kept, else what the status says (check_arrow), unless the status is good.
  void check(const arrow::Status& status) const;

 private:
  base::Guarded<std::optional<base::Error>> error_;
};

std::shared_ptr<arrow::io::RandomAccessFile> make_arrow_input(std::shared_ptr<const StoreFile> file,
                                                              std::shared_ptr<StoreTrouble> trouble);

/// Closing it leaves the store's file open: its owner commits.
std::shared_ptr<arrow::io::OutputStream> make_arrow_output(StoreWriter& to,
                                                           std::shared_ptr<StoreTrouble> trouble);

}  // namespace trireme::data
