// SentencePiece's normalizer: a precompiled table of replacements, and the rules for spaces.
#include <utf8proc.h>

#include <cstring>
#include <memory>

#include "base/error.h"
#include "base/utf8.h"
#include "data/text/piece_trie.h"
#include "data/tokenizer/characters.h"
#include "data/tokenizer/normalizer.h"

namespace trireme::data {
namespace {

// Fields of a unit of a double-array trie in the format of Darts.
bool has_leaf(uint32_t unit) { return (unit >> 8 & 1) != 0; }
uint32_t value_of(uint32_t unit) { return unit & 0x7FFFFFFFu; }
uint32_t label_of(uint32_t unit) { return unit & 0x800000FFu; }
size_t offset_of(uint32_t unit) { return static_cast<size_t>(unit >> 10) << ((unit & 0x200u) >> 6); }

/// The end of the grapheme cluster that begins at `at`.
size_t grapheme_end(std::string_view text, size_t at) {
  utf8proc_int32_t state = 0;
  size_t end = at;
  auto last = static_cast<utf8proc_int32_t>(base::next_code_point(text, end));
  while (end < text.size()) {
    size_t next = end;
    const auto code = static_cast<utf8proc_int32_t>(base::next_code_point(text, next));
    if (utf8proc_grapheme_break_stateful(last, code, &state)) break;
    end = next;
    last = code;
  }
  return end;
}

class SentencePieceText {
 public:
  SentencePieceText(PrecompiledMap map, SentencePieceRules rules, const std::vector<std::string>& kept)
      : map_(std::move(map)), rules_(rules), kept_(kept) {}

  std::string run(std::string_view text) const {
    const std::string_view space = rules_.escapes_space ? kSpaceMark : std::string_view(" ");
    std::string out;
    bool is_behind_space = rules_.removes_extra_space, is_begun = false;
    for (size_t at = 0; at < text.size();) {
      std::string_view part = next(text, at);
      while (is_behind_space && part.starts_with(' ')) part.remove_prefix(1);
      if (part.empty()) continue;
      check_growth(text.size(), out.size() + part.size());
      if (!is_begun && rules_.adds_dummy_prefix && !rules_.suffix_space) out += space;
      is_begun = true;
      for (const char c : part) c == ' ' ? void(out += space) : out.push_back(c);
      is_behind_space = rules_.removes_extra_space && part.ends_with(' ');
    }
    while (rules_.removes_extra_space && out.ends_with(space)) out.resize(out.size() - space.size());
    if (is_begun && rules_.adds_dummy_prefix && rules_.suffix_space) out += space;
    return out;
  }

 private:
  /// What one replacement or character at `at` becomes; `at` moves past it.
  std::string_view next(std::string_view text, size_t& at) const {
    const std::string_view rest = text.substr(at);
    size_t kept = 0;
    uint32_t node = PieceTrie::kRoot;
    for (size_t n = 0; n < rest.size();) {
      node = kept_.step(node, rest[n++]);
      if (node == PieceTrie::kRoot) break;
      if (kept_.piece_at(node) != PieceTrie::kNoPiece) kept = n;
    }
    if (kept == 0) {
      const PrecompiledMap::Found found = map_.longest(rest);
      if (found.bytes > 0) {
        at += found.bytes;
        return found.text;
      }
      base::next_code_point(rest, kept);
    }
    at += kept;
    return rest.substr(0, kept);
  }

  PrecompiledMap map_;
  SentencePieceRules rules_;
  PieceTrie kept_;
};

}  // namespace

PrecompiledMap::PrecompiledMap(std::string_view blob) {
  if (blob.empty()) return;
  uint32_t bytes = 0;
  base::require(blob.size() > sizeof(bytes), "precompiled_charsmap of ", blob.size(), " bytes");
  std::memcpy(&bytes, blob.data(), sizeof(bytes));
  base::require(bytes % 4 == 0 && bytes < blob.size() - sizeof(bytes), "precompiled_charsmap: a table of ",
                bytes, " bytes in ", blob.size());
  units_.resize(bytes / 4);
  std::memcpy(units_.data(), blob.data() + sizeof(bytes), bytes);
  texts_ = blob.substr(sizeof(bytes) + bytes);
  texts_.push_back('\0');
  base::require(base::is_utf8(texts_), "precompiled_charsmap: replacements that are not UTF-8");
}

uint32_t PrecompiledMap::unit(size_t at) const { return at < units_.size() ? units_[at] : 0; }

PrecompiledMap::Found PrecompiledMap::find(std::string_view text, bool wants_longest) const {
  Found found;
  if (units_.empty()) return found;
  size_t at = offset_of(unit(0));
  for (size_t n = 0; n < text.size(); ++n) {
    const auto byte = static_cast<uint8_t>(text[n]);
    if (byte == 0) break;
    at ^= byte;
    const uint32_t here = unit(at);
    if (label_of(here) != byte) break;
    at ^= offset_of(here);
    if (!has_leaf(here)) continue;
    const uint32_t begin = value_of(unit(at));
    base::require(begin < texts_.size(), "precompiled_charsmap: replacement at ", begin, " of ",
                  texts_.size());
    found = {n + 1, texts_.c_str() + begin};
    if (!wants_longest) break;
  }
  return found;
}

NormalizerStep precompiled(PrecompiledMap from) {
  constexpr size_t kLongestGrapheme = 5;
  return [map = std::make_shared<const PrecompiledMap>(std::move(from))](std::string& text) {
    std::string out;
    for (size_t at = 0; at < text.size();) {
      const size_t end = grapheme_end(text, at);
      const std::string_view grapheme = std::string_view(text).substr(at, end - at);
      const PrecompiledMap::Found whole =
          grapheme.size() <= kLongestGrapheme ? map->shortest(grapheme) : PrecompiledMap::Found{};
      if (whole.bytes > 0) {
        check_growth(text.size(), out.size() + whole.text.size());
        out += whole.text;
        at = end;
        continue;
      }
      while (at < end) {
        size_t next = at;
        base::next_code_point(text, next);
        const std::string_view character = std::string_view(text).substr(at, next - at);
        const PrecompiledMap::Found one = map->shortest(character);
        out += one.bytes > 0 ? one.text : character;
        check_growth(text.size(), out.size());
        at = next;
      }
    }
    text = std::move(out);
  };
}

NormalizerStep sentence_piece(PrecompiledMap map, SentencePieceRules rules, std::vector<std::string> kept) {
  const auto whole = std::make_shared<const SentencePieceText>(std::move(map), rules, kept);
  return [whole](std::string& text) { text = whole->run(text); };
}

}  // namespace trireme::data
