// The weights of a Hugging Face checkpoint under the names that our networks ask for.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/text/json.h"
#include "model/hf/quantization.h"
#include "model/params.h"
#include "model/safetensors.h"

namespace trireme::model::hf {

/// One of our weights is several of a checkpoint's, one under the other by rows.
struct Stacked {
  std::string name;                ///< part of our name: "attention.self.qkv"
  std::vector<std::string> parts;  ///< what stands there in the checkpoint
};

/// The stacked weights of all architectures.
const std::vector<Stacked>& stacked_weights();

/// Several of our weights are one of a checkpoint's, by rows.
struct Joined {
  std::string name;                ///< part of the checkpoint's name: "self_attn.qkv_proj"
  std::vector<std::string> parts;  ///< what stands there in ours
  std::vector<int64_t> rows;       ///< of each part
  int64_t heads = 1;               ///< above 1: the parts' rows of each head lie together, head after head
};

/// One of our weights holds matrices that a checkpoint numbers: of the experts of a mixture.
struct Numbered {
  std::string name;         ///< part of our name: "mlp.experts.gate_proj"
  std::string first, last;  ///< in the checkpoint, around the number: "mlp.experts." and ".gate_proj"
  int64_t count = 0;
};

/// Several of our weights [experts, out, in] are one of a checkpoint's, [experts, in, parts * out] with
/// neighbouring columns of all parts in turn; biases [experts, out] are NAME_bias [experts, parts * out]. In
/// 4 bits it has rows instead: NAME_blocks u8 [experts, parts * out, in / 32, 16], NAME_scales.
struct Woven {
  std::string name;                ///< part of the checkpoint's name: "mlp.experts.gate_up_proj"
  std::vector<std::string> parts;  ///< what stands there in ours, before ".weight" and ".bias"
  int64_t experts = 0;
};

/// Where a checkpoint has other weights than our network.
struct WeightMap {
  std::vector<Joined> joined;
  std::vector<Numbered> numbered;
  std::vector<Woven> woven;
};

/// Part i of a joined weight, whose rows are those of all parts. Throws invalid_argument for others.
tensor::Tensor part_of(const tensor::Tensor& whole, const Joined& joined, size_t i);

/// Weights under our names -> those of a checkpoint. Throws not_found where one of joined parts is missing.
NamedTensors to_checkpoint(const NamedTensors& weights, const WeightMap& map);

/// Which weights stored() gives otherwise than in f32.
struct StoredForms {
  Quantization quantization = {};  ///< of the checkpoint
  bool keeps_halves = false;       ///< matrices of 16-bit floats stay so
  /// Large ones have types alone, unless the checkpoint is quantized; without files all are taken to be f32.
  bool is_without_content = false;
};

/// Reads model.safetensors, or the shards that model.safetensors.index.json lists. Tensors view the files;
/// get() gives f32 of whatever is stored.
class CheckpointParams : public ParamSource {
 public:
  /// `prefix` ("bert."): what names may have in front in the checkpoint or lack there.
  CheckpointParams(const std::string& directory, std::string prefix, WeightMap map = {},
                   StoredForms forms = {});
  tensor::Tensor get(const std::string& name, const tensor::Dims& dims, const Init& init) override;
  StoredParam stored(const std::string& name, const tensor::Dims& dims, const Init& init) override;
  /// True if the checkpoint has the weight under one of its names.
  bool has(const std::string& name) const { return find(name) != nullptr; }
  /// The weight as f32, whatever its extents. Throws not_found.
  tensor::Tensor need(const std::string& name) const;
  /// The files, whose pages can be given back.
  std::vector<std::shared_ptr<const base::MappedFile>> files() const;

 private:
  const tensor::Tensor* find(const std::string& name) const;
  const tensor::Tensor* find_exact(const std::string& name) const;
  /// One of the checkpoint's weights, of rows of `k`, as it is stored.
  const StoredParam& stored_whole(const std::string& name, int64_t k);
  /// Ours as the map makes it of the checkpoint's.
  StoredParam stored_mapped(const std::string& name, int64_t k);
  StoredParam unwoven(const Woven& woven, size_t part, const std::string& stem, bool is_bias) const;
  StoredParam stacked(const Numbered& numbered, const std::string& name, int64_t k);
  /// Gives back the pages of a file's tensor that has another form in memory now.
  void release(const tensor::Tensor& read) const;

  std::vector<Safetensors> files_;
  std::unique_ptr<AbsentParams> absent_;  ///< in their place
  std::string prefix_;
  WeightMap map_;
  StoredForms forms_;
  std::pair<std::string, StoredParam>
      last_;  ///< the last whole weight: parts of joined ones follow each other
};

/// f16, bf16 and f8e8m0 -> f32; f32 stays where it is. Throws unsupported for another type.
tensor::Tensor to_f32(const tensor::Tensor& t);

/// Rows of equal length one under the other.
tensor::Tensor stack_rows(const std::vector<tensor::Tensor>& parts);

/// The files of a checkpoint: model.safetensors, or the shards that its index lists. Throws not_found.
std::vector<Safetensors> open_checkpoint(const std::string& directory);

/// True if the directory holds model.safetensors or its index.
bool has_checkpoint(const std::string& directory);

/// An integer of config.json that must be there and positive. Throws invalid_argument naming the key.
int64_t need_positive(const base::Json& config, std::string_view key);

/// Classes of a classifier: names in id2label, else num_labels, else 2.
int64_t class_count(const base::Json& config);

}  // namespace trireme::model::hf
