// The manifest of a job: what is read, in which chunks, by which model, with which options. Never changed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/text/json.h"
#include "data/rows/row_file.h"

namespace trireme::batch {

struct InputFile {
  std::string path;
  uint64_t content_id = 0;
};

/// Rows that are read, answered, written and journaled together.
struct Chunk {
  uint32_t file = 0;  ///< of Manifest::files
  data::RowSpan span;
};

struct Manifest {
  uint64_t job = 0;                     ///< drawn at random; the journal names it
  int64_t wall_ns = 0;                  ///< when the job began
  base::Json identity;                  ///< of the model: RowModel::identity()
  base::Json result;                    ///< the options on which the bytes of the output depend
  base::Json options;                   ///< all options of the job's first start: what `resume` takes
  std::vector<data::Field> partitions;  ///< columns that the files' directories name: i64 or text
  std::vector<InputFile> files;
  std::vector<Chunk> chunks;  ///< in the order of the input

  int64_t rows() const;
};

/// Writes it whole or not at all.
void write_manifest(const std::string& path, const Manifest& manifest);

/// Throws not_found, and invalid_argument for damage and for another version.
Manifest read_manifest(const std::string& path);

/// Lines that name what differs: "precision: f32 then, bf16 now". Empty: nothing.
std::vector<std::string> differences(const base::Json& then, const base::Json& now);

}  // namespace trireme::batch
