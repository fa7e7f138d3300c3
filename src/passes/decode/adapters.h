// Room for adapters of low rank beside the products of a language model in the form for decoding.
#pragma once

#include <map>
#include <string>

#include "passes/decode/decode.h"

namespace trireme::passes {

/// Adds an adapter_linear behind each product of all new tokens with a weight `NAME.weight`, however that is
/// stored, and the input kDecodeAdapters. What adapters hold are states: adapter_ranks(NAME) i32 [slots],
/// adapter_down(NAME) [slots, rank, in], adapter_up(NAME) [slots, rank, out]. A token of a slot below 0 runs
/// as without. Before other passes, which join products and what follows them. Throws unsupported where no
/// product takes an adapter: the graph has lost the names of its weights.
void add_adapters(DecodeGraph& form, int64_t slots, int64_t rank);

/// Places the states of adapters as the weights beside which they stand: where ranks split a weight by what
/// it gives, adapter_up() is split and adapter_down() whole; where by what it takes, the other way round, and
/// what the adapter adds is a part of the sum over ranks that follows the product.
void place_adapters(const AdapterRoom& room, const tensor::MeshShape& mesh,
                    std::map<std::string, tensor::Shard>& placed);

std::string adapter_ranks(const std::string& module);
std::string adapter_down(const std::string& module);
std::string adapter_up(const std::string& module);

}  // namespace trireme::passes
