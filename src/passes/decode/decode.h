// From a language model over whole sequences to one that keeps keys and values in pages and takes new tokens
// of many sequences in one ragged batch.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"

namespace trireme::passes {

struct DecodeOptions {
  tensor::DType page_type = tensor::DType::f32;  ///< of keys and values: f32, bf16, f16, i8 or f8e4m3fn
  int64_t pages = 1;                             ///< of the pool
  int64_t page_tokens = 16;
  int64_t most_pages = 0;  ///< of one sequence; 0: as many as the model's positions fill
};

/// What the rewritten graph keeps for each layer: states keys(i) and values(i), [pages, kv_heads,
/// page_tokens, dim] each.
struct DecodeLayer {
  int64_t kv_heads = 1, dim = 1;
  size_t number = 0;  ///< i, of the whole model
};

/// A product that adapters may add to: "model.layers.0.self_attn.q_proj", rows of `in` to rows of `out`.
struct AdapterModule {
  std::string name;
  int64_t in = 0, out = 0;
  bool is_transposed = false;  ///< its weight is [out, in], else [in, out]
};

/// Room for adapters, see passes/decode/adapters.h.
struct AdapterRoom {
  int64_t slots = 0;  ///< 0: there is none
  int64_t rank = 0;   ///< of an adapter at most
  std::vector<AdapterModule> modules;
};

struct DecodeGraph {
  ir::Graph graph;
  std::vector<DecodeLayer> layers;
  AdapterRoom adapters;
  int64_t positions = 0;  ///< tokens that the model's table of positions allows; 0: it has none
  int64_t vocabulary = 0;
  DecodeOptions options;
  /// Of a stage of a pipeline, see passes/decode/decode_stages.h: what arrives and what leaves, by names of
  /// inputs and outputs. A graph to which nothing comes takes the tokens; one from which nothing leaves
  /// draws.
  std::vector<std::string> arrives = {}, leaves = {};

  bool takes_tokens() const { return arrives.empty(); }
  bool draws() const { return leaves.empty(); }
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
  kDecodeAdapters,   ///< i32 [tokens]: slot of its adapter, below 0: none; of a graph with room for adapters
  kDecodeInputs
};

/// `graph`: input_ids i64 [batch, seq] -> logits [batch, seq, vocabulary] as model builders make it: causal
/// attention_bsnd, positions by rotary_embedding or by leading rows of a table. The result's output "logits"
/// is [1, sequences, vocabulary], of each sequence's last new token. All nodes between attentions treat
/// tokens one by one. Throws unsupported naming the node that does not, or whose attention sees later tokens.
DecodeGraph decode_form(const ir::Graph& graph, const DecodeOptions& options);

/// The same graph over a pool of another size.
void set_pages(DecodeGraph& form, int64_t pages);

/// What a step gives for each sequence: logits, or draws with any of what follows, joined by |.
enum class DecodeResult : uint8_t {
  logits = 0,     ///< f32 [1, sequences, vocabulary]
  tokens = 1,     ///< a draw: i64 [sequences], and f32 [sequences], the logarithm of its probability
  penalized = 3,  ///< after penalties for tokens that were seen, which the step counts
  edited = 5,     ///< of the logits that edit_logits leaves, first of all
  listed = 9,     ///< with the likeliest tokens: i64 [sequences, n], their logarithms f32 [sequences, n], and
                  ///< those of tokens that are asked about: f32 [sequences, 1]
};
constexpr DecodeResult operator|(DecodeResult a, DecodeResult b) {
  return static_cast<DecodeResult>(static_cast<uint8_t>(a) | static_cast<uint8_t>(b));
}
constexpr bool includes(DecodeResult all, DecodeResult part) { return (all | part) == all; }

/// More inputs of a graph that draws, behind the others in this order; those of parts that a result does not
/// include are left out.
enum DrawInput : size_t {
  kDrawChosen = kDecodeInputs,  ///< i64 [most sequences]: what another step drew
  kDrawFrom,                    ///< i32 [tokens]: row of that step whose token this is; below 0: see ids
  kDrawSettings,                ///< f32 [sequences, 4 or 7], as sample_tokens takes them
  kDrawCounters,                ///< i64 [sequences, 2]: seed and position of the draw
  kDrawPlaces,                  ///< i32 [sequences]: row of the state kSeenTokens; of `penalized`
  kDrawAllowed,                 ///< i32 [sequences, ceil(vocabulary / 32)]: a bit a token; of `edited`
  kDrawBiasIds,                 ///< i32 [sequences, kMostBiases]: below 0: none; of `edited`
  kDrawBiases,                  ///< f32 [sequences, kMostBiases]; of `edited`
  kDrawWanted,                  ///< i64 [sequences, 1]: tokens that are asked about; of `listed`
  kDrawInputs
};
inline constexpr const char* kSeenTokens = "seen";  ///< i32 [places, vocabulary], see count_tokens
inline constexpr int64_t kMostBiases = 300;         ///< of one sequence
inline constexpr int64_t kMostListed = 20;          ///< of the likeliest tokens
/// How many of the likeliest tokens a result that lists them has for each sequence.
inline int64_t listed_tokens(const DecodeGraph& form) { return std::min(kMostListed, form.vocabulary); }

/// The inputs of a step's graph, in its order: numbers of DecodeInput and DrawInput.
std::vector<size_t> inputs_of(DecodeResult result, bool has_adapters = false);

/// Which operand an input behind the ids is: a number of DecodeInput or DrawInput. Throws internal for a name
/// that no operand has.
size_t operand_called(std::string_view name);

/// `form` with draws instead of logits, after passes or before. `most_sequences`: of any step; `places`: rows
/// of what is seen. Of a stage: takes drawn tokens if it takes tokens, draws if it draws.
ir::Graph draw_form(const DecodeGraph& form, DecodeResult result, int64_t most_sequences, int64_t places);

}  // namespace trireme::passes
