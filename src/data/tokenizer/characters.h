// What tokenizers ask of characters and of texts: classes of Unicode, whole characters, GPT-2's alphabet of
// bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace trireme::data {

/// Bits of a code point's classes.
enum CharacterClass : uint8_t {
  kLetter = 1,         ///< \p{L}
  kNumber = 2,         ///< \p{N}
  kSpace = 4,          ///< White_Space
  kOther = 8,          ///< none of these three
  kPunctuation = 16,   ///< \p{P}, and the ASCII symbols
  kMark = 32,          ///< \p{M}
  kWordCharacter = 64  ///< \w: alphabetic characters, marks, decimal digits, connectors, joiners
};

uint8_t character_classes(char32_t code);
inline bool is_white_space(char32_t code) { return (character_classes(code) & kSpace) != 0; }
inline bool is_word_character(char32_t code) { return (character_classes(code) & kWordCharacter) != 0; }

bool is_ascii(std::string_view text);
/// Well-formed UTF-8: ill-formed sequences become U+FFFD.
std::string well_formed(std::string_view bytes);
/// Bytes up to which `text` is whole characters: what is behind may become one.
size_t whole_prefix(std::string_view text);
/// Start of the character that ends at `end` (end > 0).
size_t previous_character(std::string_view text, size_t end);
/// White space before `end`, down to `begin`: where it starts.
size_t skip_space_left(std::string_view text, size_t begin, size_t end);
/// Where the white space that starts at `begin` ends.
size_t skip_space_right(std::string_view text, size_t begin);
/// Throws exhausted where a step has made more of a text than tokenizers need: each of a row of replacements
/// could make a text many times as long.
void check_growth(size_t before_bytes, size_t now_bytes);
/// The result is within check_growth() of `text`.
void replace_all(std::string& text, std::string_view from, std::string_view to);

/// GPT-2's alphabet: every byte is a printable character. Spells bytes so.
std::string to_alphabet(std::string_view bytes);
/// The bytes that a text in that alphabet stands for; the text itself if it has other characters.
std::string from_alphabet(std::string_view text);

/// "<0x0A>" -> 10, else -1.
int byte_of_name(std::string_view token);
/// 10 -> "<0x0A>".
std::string name_of_byte(uint8_t byte);

}  // namespace trireme::data
