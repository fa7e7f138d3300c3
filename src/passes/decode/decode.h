// From a language model over whole sequences to one that keeps keys and values in pages and takes new tokens
// of many sequences in one ragged batch.
#pragma once

#include <string>
#include <vector>

#include "ir/graph.h"

namespace trireme::passes {

struct DecodeOptions {
  tensor::DType page_type = tensor::DType::f32;  ///< of keys and values: f32, bf16 or f16
  int64_t pages = 1;                             ///< of the pool
  int64_t page_tokens = 16;
  int64_t most_pages = 0;  ///< of one sequence; 0: as many as the model's positions fill
};

/// What the rewritten graph keeps for each layer: states keys(i) and values(i), [pages, kv_heads,
/// page_tokens, dim] each.
struct DecodeLayer {
  int64_t kv_heads = 1, dim = 1;
};

struct DecodeGraph {
  ir::Graph graph;
  std::vector<DecodeLayer> layers;
  int64_t positions = 0;  ///< tokens that the model's table of positions allows; 0: it has none
  int64_t vocabulary = 0;
  DecodeOptions options;
};

/// Names of the states of layer i.
std::string key_pages(size_t layer);
std::string value_pages(size_t layer);

/// The inputs, in this order.
enum DecodeInput : size_t {
  kDecodeIds,        ///< i64 [1, tokens]: new tokens, sequence after sequence
  kDecodePositions,  ///< i64 [1, tokens]: of each in its sequence
  kDecodeSlots,      ///< i32 [tokens]: where its keys and values go (kv_append)
  kDecodeTable,      ///< i32 [sequences, most_pages]: pages of each sequence
  kDecodeLengths,    ///< i32 [sequences]: tokens with the new ones; 0: no sequence
  kDecodeStarts,     ///< i32 [sequences + 1]: first new token of each sequence
  kDecodeLast,       ///< i64 [sequences]: number of its last new token
  kDecodeInputs
};

/// `graph`: input_ids i64 [batch, seq] -> logits [batch, seq, vocabulary] as model builders make it: causal
/// attention_bsnd, positions by rotary_embedding or by leading rows of a table. The result's output "logits"
/// is [1, sequences, vocabulary], of each sequence's last new token. All nodes between attentions treat
/// tokens one by one. Throws unsupported naming the node that does not, or whose attention sees later tokens.
DecodeGraph decode_form(const ir::Graph& graph, const DecodeOptions& options);

/// The same graph over a pool of another size.
void set_pages(DecodeGraph& form, int64_t pages);

/// What a step gives for each sequence.
enum class DecodeResult : uint8_t {
  logits,     ///< f32 [1, sequences, vocabulary]
  tokens,     ///< a draw: i64 [sequences], and f32 [sequences], the logarithm of its probability
  penalized,  ///< the same after penalties for tokens that were seen, which the step counts
};

/// More inputs of a graph that draws, behind the others in this order.
enum DrawInput : size_t {
  kDrawChosen = kDecodeInputs,  ///< i64 [most sequences]: what another step drew
  kDrawFrom,                    ///< i32 [tokens]: row of that step whose token this is; below 0: see ids
  kDrawSettings,                ///< f32 [sequences, 4 or 7], as sample_tokens takes them
  kDrawCounters,                ///< i64 [sequences, 2]: seed and position of the draw
  kDrawPlaces,                  ///< i32 [sequences]: row of the state kSeenTokens; of `penalized` alone
  kDrawInputs
};
inline constexpr const char* kSeenTokens = "seen";  ///< i32 [places, vocabulary], see count_tokens

/// `form` with draws instead of logits, after passes or before. `most_sequences`: of any step; also the
/// places of what is seen.
ir::Graph draw_form(const DecodeGraph& form, DecodeResult result, int64_t most_sequences);

}  // namespace trireme::passes
