// The parts of a tokenizer.json as steps.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/text/json.h"
#include "data/tokenizer/bpe.h"
#include "data/tokenizer/piece_tokenizer.h"

namespace trireme::data {

/// A part of tokenizer.json; null where it is null or absent.
const base::Json* part_of(const base::Json& json, std::string_view key);
std::string type_of(const base::Json& json);
/// The parts of a Sequence under `list`, or the part itself.
std::vector<const base::Json*> parts_of(const base::Json* part, std::string_view list);

/// Each reads its section into `parts`; throws unsupported naming a step that is not done here.
void read_normalizer(const base::Json& json, TokenizerParts& parts);
void read_pre_tokenizer(const base::Json& json, TokenizerParts& parts);
void read_decoder(const base::Json& json, TokenizerParts& parts);
void read_post_processor(const base::Json& json, TokenizerParts& parts);
/// The section `model`; the pre-tokenizer has been read.
void read_model(const base::Json& model, TokenizerParts& parts);

/// {"token": id} -> tokens by id.
std::vector<std::string> vocabulary_of(const base::Json& map);
/// An added token of tokenizer.json or tokenizer_config.json.
SpecialToken special_of(const base::Json& json, int64_t id);
/// "a b" in one string, as older files have it.
std::pair<std::string, std::string> split_merge(std::string_view text);

/// A model by listed merges; of a byte-level one `tokens` and merges are spelled in GPT-2's alphabet.
std::unique_ptr<PieceModel> bpe_of(std::vector<std::string> tokens,
                                   std::vector<std::pair<std::string, std::string>> merges, BpeRules rules);

}  // namespace trireme::data
