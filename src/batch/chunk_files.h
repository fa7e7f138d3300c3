// The files of one chunk while they are written: rows, and the rows that failed. They appear whole or not at
// all.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "batch/piece.h"
#include "batch/state/job_directory.h"
#include "batch/state/record.h"
#include "data/rows/row_file.h"
#include "data/rows/row_writer.h"
#include "data/store/store.h"

namespace trireme::batch {

/// What the files of all chunks have in common.
struct OutputForm {
  std::shared_ptr<const data::Store> store;
  JobDirectory directory;
  std::string temporary;  ///< this worker's own directory; used where the store is local
  data::RowWriterOptions writer;
  std::vector<data::Field> outputs;  ///< of the model, under the names that they are written by
  std::vector<std::string> keep;     ///< columns of the input that are carried through
};

/// The columns of the output's files: those of the input that are kept, then the model's outputs.
std::vector<data::Field> written_fields(const OutputForm& form, const std::vector<data::Field>& input);

/// One file of the output, with the checksum of its bytes. Local: written beside, and renamed; in a bucket:
/// an upload that is completed. One thread.
class PendingFile {
 public:
  PendingFile(const OutputForm& form, std::string path);
  ~PendingFile();
  PendingFile(const PendingFile&) = delete;
  PendingFile& operator=(const PendingFile&) = delete;

  data::StoreWriter& writer();
  /// The content is whole, and on the disk where that is local.
  void seal();
  /// Under its own name. Local: the directory's names still have to be flushed.
  void publish();
  int64_t bytes() const;
  uint32_t crc() const;

 private:
  class Counted;
  const OutputForm& form_;
  std::string path_, temporary_;  ///< temporary: empty in a bucket
  std::unique_ptr<data::StoreWriter> file_;
  std::unique_ptr<Counted> counted_;
  bool is_sealed_ = false;
};

/// The files of one chunk. Without publish() nothing of them stays. One thread.
class ChunkFiles {
 public:
  /// `input`: the file of the rows, for what is said of failed ones.
  ChunkFiles(const OutputForm& form, int64_t chunk, std::string input);

  /// Pieces in their order, each without a question.
  void write(const Piece& piece);
  int64_t rows() const { return result_.rows; }
  int64_t errors() const { return result_.errors; }
  /// Ends both files; a chunk of which every row failed has a file of no rows.
  ChunkResult seal(const data::RowFile& input);
  /// With the journal's lock held: both files get their names, and are on the disk. An error file that an
  /// earlier attempt left is removed.
  void publish();

 private:
  void open(const data::Rows* carried, const std::vector<data::Field>& input);
  void write_failures(const Piece& piece);

  const OutputForm& form_;
  int64_t chunk_;
  std::string input_;
  std::unique_ptr<PendingFile> part_, error_part_;
  std::unique_ptr<data::RowWriter> rows_;
  ChunkResult result_;
};

}  // namespace trireme::batch
