// A checkpoint: everything a run needs to go on as if it had never stopped, as a directory of logical
// tensors.
//
//   step-00000120/
//     index.json                 what is where: tensors by name with dtype, shape, chunks, checksums; the
//     meta tensors-00000.safetensors  the bytes, also readable by any safetensors reader
//   latest, best                 text files beside the directories: the name of one of them
//
// docs/formats.md describes the index. A checkpoint appears by one rename and is complete then, or not there.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/text/json.h"
#include "model/safetensors.h"
#include "tensor/shard.h"
#include "train/files/file_ops.h"

namespace trireme::train {

struct Checkpoint {
  int64_t step = 0;  ///< executed and skipped steps so far: the data position is step x global batch
  base::Json meta;   ///< schedule, scaler, guard, data cursor, configuration: small and readable;
                     ///< "previous": the step of the checkpoint that this one continues; its identity,
                     ///< "previous_crc32c", is added where this one is committed
  model::NamedTensors tensors;  ///< parameters, moments, running statistics, averages; global shapes

  const tensor::Tensor* find(std::string_view name) const;
  int64_t bytes() const;
};

/// A part of a logical tensor, as one rank writes it.
struct CheckpointPiece {
  std::string name;
  tensor::Dims dims;       ///< of the whole tensor
  tensor::Box box;         ///< which part of it
  tensor::Tensor content;  ///< of shape box.size
};

/// What a rank wrote: chunks for the index, and bytes.
struct WrittenPart {
  base::Json chunks = base::Json::array();
  int64_t bytes = 0;
};

/// Writes and flushes the files DIRECTORY/STEM-00000.safetensors, … of one rank's pieces. `shard_bytes`
/// bounds a file (one piece is never cut).
WrittenPart write_part(FileOps& files, const std::string& directory, const std::string& stem,
                       const std::vector<CheckpointPiece>& pieces, int64_t shard_bytes = int64_t{4} << 30);

/// "step-00000120".
std::string checkpoint_name(int64_t step);

struct WriteResult {
  std::string path;
  int64_t bytes = 0;
  std::optional<base::Error> pointer_error;  ///< why `latest` does not name this complete checkpoint
};

/// What a rank alone writes: everything. Shares the tensors' bytes.
std::vector<CheckpointPiece> whole_pieces(const model::NamedTensors& tensors);

/// Writes root/step-… of one rank's pieces: growing directory, files, flush, commit. Of `head` step and meta
/// count. A checkpoint of that step that is already there is replaced at once. Throws exhausted (disk full)
/// or unavailable; whatever was there before stays as it was.
WriteResult write_checkpoint(FileOps& files, const std::string& root, const Checkpoint& head,
                             const std::vector<CheckpointPiece>& pieces,
                             int64_t shard_bytes = int64_t{4} << 30);

/// Where a checkpoint of that step grows, unseen by readers.
std::string growing_directory(const std::string& root, int64_t step);

/// Makes one checkpoint of the parts that lie in its growing directory: index, flush, rename (the commit
/// point), pointer `latest`. Throws like write_checkpoint until the checkpoint is committed.
WriteResult commit_checkpoint(FileOps& files, const std::string& root, const Checkpoint& head,
                              const std::vector<WrittenPart>& parts);

/// Writes the one-line file root/pointer atomically.
void write_pointer(FileOps& files, const std::string& root, const std::string& pointer,
                   const std::string& name);
/// The name in that file; empty if there is none.
std::string read_pointer(const std::string& root, const std::string& pointer);

/// Reads a checkpoint directory. Throws not_found, or invalid_argument naming what is wrong: a missing or
/// truncated file, a checksum that differs, chunks that do not cover their tensor exactly once.
Checkpoint load_checkpoint(const std::string& directory);
/// Only step and meta; checks the index, not the tensors.
Checkpoint load_checkpoint_meta(const std::string& directory);

/// The checkpoint that `path` means: itself, or what the pointer `latest` names in it or in its folder
/// checkpoints/ (a run directory); without a pointer the one of the last step. Throws not_found.
std::string find_checkpoint(const std::string& path);
/// Whether find_checkpoint() has something to look at there.
bool has_checkpoint(const std::string& path);

/// Names of the complete checkpoints under a root, oldest step first.
std::vector<std::string> list_checkpoints(const std::string& root);
/// The name of the checkpoint from which the run of this root goes on: that of `latest`, or of one that
/// continues it and was committed by a process that ended before it could say so. Later steps that do not
/// continue it are of an abandoned past. Without a pointer to one: the last step. Empty if there is none.
std::string newest_checkpoint(const std::string& root);

}  // namespace trireme::train
