// The BERT text rules: clean, space out Chinese, strip accents, lower the case, split at spaces and
// punctuation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::data {

/// The options of Hugging Face's BertNormalizer.
struct BertTextRules {
  bool clean_text = true;            // drop control characters, make every white space a space
  bool handle_chinese_chars = true;  // a word for each
  bool strip_accents = true;         // canonical decomposition without nonspacing marks
  bool lowercase = true;
};

/// Words one after the other in one buffer; reuse it to avoid allocation.
struct BertWords {
  std::string bytes;
  std::vector<size_t> ends;  // ends[i]: where word i ends; it begins where the one before ends

  size_t size() const { return ends.size(); }
  std::string_view operator[](size_t i) const {
    const size_t begin = i == 0 ? 0 : ends[i - 1];
    return std::string_view(bytes).substr(begin, ends[i] - begin);
  }
  void clear() {
    bytes.clear();
    ends.clear();
  }
};

/// Splits text into words exactly as Hugging Face's BertNormalizer and BertPreTokenizer do. Immutable; any
/// thread.
class BertText {
 public:
  explicit BertText(BertTextRules rules);

  /// Appends the words of `text`; ill-formed UTF-8 reads as U+FFFD. Cost: about 2 ns a byte of ASCII.
  void append_words(std::string_view text, BertWords& words) const;

  const BertTextRules& rules() const { return rules_; }

 private:
  struct Run;
  uint8_t class_of(char32_t code) const;
  void take(char32_t code, Run& run) const;
  void decompose(char32_t code, Run& run) const;
  void emit(char32_t code, Run& run) const;
  void flush(Run& run) const;

  BertTextRules rules_;
  std::vector<uint8_t> classes_;  // bits by code point, for the planes that text uses
  uint8_t ascii_[128];            // what to do with each ASCII character, as above
  char lower_[128];
};

}  // namespace trireme::data
