// The options of a session that continues texts which commands share: its cache of keys and values, its
// steps.
#pragma once

#include "base/text/options.h"
#include "engine/decode/decode_model.h"

namespace trireme::engine {

enum class CacheType : uint8_t { f32, bf16, f16, int8, fp8 };

struct CacheOptions {
  CacheType cache_type = CacheType::f32;
  base::ByteSize cache_bytes;
  int64_t page_tokens = 16, max_sequences = 64, chunk = 512, max_length = 0;
  bool share_prefixes = true;
  int64_t max_adapters = 0, max_adapter_rank = 16;

  void fields(base::OptionList& f) {
    f.add_choice("cache_type", &cache_type, {"f32", "bf16", "f16", "int8", "fp8"},
                 "keys and values that are kept; int8 and fp8 with a scale for each token and head");
    f.add("cache_bytes", &cache_bytes,
          "memory for keys and values of each rank; 0: up to half of the device's");
    f.add("page_tokens", &page_tokens, "tokens of a page of keys and values").at_least(1).at_most(1 << 20);
    f.add("share_prefixes", &share_prefixes, "texts that begin alike share the pages of that beginning");
    f.add("max_sequences", &max_sequences, "texts under way at a time").at_least(1).at_most(1 << 20);
    f.add("chunk", &chunk, "new tokens of one step; longer prompts take several")
        .at_least(1)
        .at_most(1 << 20);
    f.add("max_length", &max_length, "tokens of prompt and answer; 0: as many as the model knows")
        .at_least(0)
        .at_most(int64_t{1} << 31);
    f.add("max_adapters", &max_adapters, "adapters (LoRA) that are loaded at a time; 0: none may be")
        .at_least(0);
    f.add("max_adapter_rank", &max_adapter_rank, "rank of an adapter at most").at_least(1);
  }

  void apply(DecodeOptions& o) const {
    using tensor::DType;
    constexpr DType kTypes[] = {DType::f32, DType::bf16, DType::f16, DType::i8, DType::f8e4m3fn};
    o.cache_type = kTypes[static_cast<size_t>(cache_type)];
    o.cache_bytes = cache_bytes.bytes;
    o.page_tokens = page_tokens;
    o.share_prefixes = share_prefixes;
    o.max_sequences = max_sequences;
    o.max_tokens = chunk;
    o.max_length = max_length;
    o.max_adapters = max_adapters;
    o.max_adapter_rank = max_adapter_rank;
  }
};

}  // namespace trireme::engine
