// A checkpoint: everything a run needs to go on as if it had never stopped, as a directory of logical
// tensors.
//
//   step-00000120/
//     index.json                 what is where: tensors by name with dtype, shape, chunks and checksums; the
//     meta tensors-00000.safetensors  the bytes, also readable by any safetensors reader
//   latest, best                 text files beside the directories: the name of one of them
//
// docs/formats.md describes the index. A checkpoint appears by one rename and is complete then, or not there.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "model/safetensors.h"
#include "train/file_ops.h"

namespace trireme::train {

struct Checkpoint {
  int64_t step = 0;  ///< executed and skipped steps so far: the data position is step x global batch
  base::Json meta;   ///< schedule, scaler, guard, data cursor, configuration: small and readable
  model::NamedTensors tensors;  ///< parameters, moments, running statistics, averages; global shapes

  const tensor::Tensor* find(std::string_view name) const;
  int64_t bytes() const;
};

/// "step-00000120".
std::string checkpoint_name(int64_t step);

struct WriteResult {
  std::string path;
  int64_t bytes = 0;
};

/// Writes root/step-…: temporary directory, files, flush, rename, flush, pointer `latest`. A checkpoint of
/// that step that is already there is replaced at once. Throws exhausted (disk full) or unavailable; whatever
/// was there before stays as it was. `shard_bytes` bounds a tensor file (one tensor is never cut).
WriteResult write_checkpoint(FileOps& files, const std::string& root, const Checkpoint& checkpoint,
                             int64_t shard_bytes = int64_t{4} << 30);

/// Writes the one-line file root/pointer atomically.
void write_pointer(FileOps& files, const std::string& root, const std::string& pointer,
                   const std::string& name);

/// Reads a checkpoint directory. Throws not_found, or invalid_argument naming what is wrong: a missing or
/// truncated file, a checksum that differs, chunks that do not cover their tensor exactly once.
Checkpoint load_checkpoint(const std::string& directory);
/// Only step and meta; checks the index, not the tensors.
Checkpoint load_checkpoint_meta(const std::string& directory);

/// The checkpoint that `path` means: itself, or what the pointer `latest` names in it or in its folder
/// checkpoints/ (a run directory). Throws not_found.
std::string find_checkpoint(const std::string& path);
/// Whether find_checkpoint() has something to look at there.
bool has_checkpoint(const std::string& path);

/// Names of the complete checkpoints under a root, oldest step first.
std::vector<std::string> list_checkpoints(const std::string& root);

}  // namespace trireme::train
