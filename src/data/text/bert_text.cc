// The BERT text rules, with a table walk for ASCII and utf8proc for the rest.
#include "data/text/bert_text.h"

#include <utf8proc.h>

#include <algorithm>
#include <iterator>
#include <span>

#include "base/utf8.h"
#include "data/text/bert_tables.h"

namespace trireme::data {
namespace {

// Bits of a code point's class.
constexpr uint8_t kRemoved = 1, kSpace = 2, kPunctuation = 4, kChinese = 8, kAccent = 16;
// The code point neither decomposes nor reorders nor has a case, so it is emitted as it is.
constexpr uint8_t kPlain = 32;

// Planes 0 and 1 hold nearly all text; code points above are searched in the ranges.
constexpr char32_t kTableSize = 0x20000;

struct ClassRanges {
  std::span<const CodeRange> ranges;
  uint8_t bit;
};
constexpr ClassRanges kClassRanges[] = {{kBertRemoved, kRemoved},
                                        {kBertSpace, kSpace},
                                        {kBertPunctuation, kPunctuation},
                                        {kBertChinese, kChinese},
                                        {kBertAccent, kAccent}};

uint8_t search_class(char32_t code) {
  uint8_t bits = 0;
  for (const auto& [ranges, bit] : kClassRanges) {
    const auto after = std::upper_bound(ranges.begin(), ranges.end(), code,
                                        [](char32_t c, const CodeRange& r) { return c < r.first; });
    if (after != ranges.begin() && code <= std::prev(after)->last) bits |= bit;
  }
  return bits;
}

bool is_plain(char32_t code) {
  const utf8proc_property_t* property = utf8proc_get_property(static_cast<utf8proc_int32_t>(code));
  const bool hangul = code >= 0xAC00 && code <= 0xD7A3;  // decomposes by rule, not by table
  return !hangul && property->combining_class == 0 && property->decomp_seqindex == UINT16_MAX &&
         property->lowercase_seqindex == UINT16_MAX;
}

}  // namespace

/// State of one call: the output words, and marks that wait for their canonical order.
struct BertText::Run {
  BertWords& words;
  std::vector<char32_t> marks;  // adjacent code points of nonzero combining class, without stripped ones

  void end_word() {
    if (words.bytes.size() > (words.ends.empty() ? 0 : words.ends.back()))
      words.ends.push_back(words.bytes.size());
  }
};

BertText::BertText(BertTextRules rules) : rules_(rules), classes_(kTableSize) {
  for (const auto& [ranges, bit] : kClassRanges) {
    for (const CodeRange& range : ranges) {
      for (char32_t code = range.first; code <= range.last && code < kTableSize; ++code)
        classes_[code] |= bit;
    }
  }
  for (char32_t code = 0; code < kTableSize; ++code) {
    if (is_plain(code)) classes_[code] |= kPlain;
  }
  for (size_t i = 0; i < 128; ++i) {
    const uint8_t bits = classes_[i];
    // A removed character that is also a space counts as a space only if text is not cleaned; tabs and
    // newlines are never removed.
    ascii_[i] = rules_.clean_text && (bits & kRemoved) != 0 ? kRemoved : bits & (kSpace | kPunctuation);
    lower_[i] = static_cast<char>(rules_.lowercase && i >= 'A' && i <= 'Z' ? i + 32 : i);
  }
}

uint8_t BertText::class_of(char32_t code) const {
  return code < kTableSize ? classes_[code] : search_class(code);
}

void BertText::append_words(std::string_view text, BertWords& words) const {
  Run run{words, {}};
  for (size_t pos = 0; pos < text.size();) {
    const auto byte = static_cast<uint8_t>(text[pos]);
    if (byte >= 128) {
      take(base::next_code_point(text, pos), run);
      continue;
    }
    ++pos;
    const uint8_t bits = ascii_[byte];
    if (bits == kRemoved) continue;
    if (!run.marks.empty()) flush(run);
    if (bits == 0) {
      words.bytes.push_back(lower_[byte]);
      continue;
    }
    run.end_word();
    if (bits == kPunctuation) {
      words.bytes.push_back(lower_[byte]);
      run.end_word();
    }
  }
  flush(run);
  run.end_word();
}

void BertText::take(char32_t code, Run& run) const {
  const uint8_t bits = class_of(code);
  if (rules_.clean_text && (bits & kRemoved) != 0) return;
  const bool chinese = rules_.handle_chinese_chars && (bits & kChinese) != 0;
  if (chinese) {
    flush(run);
    run.end_word();
  }
  if ((bits & kPlain) != 0 && (bits & kAccent) == 0) {
    flush(run);
    emit(code, run);
  } else if (rules_.strip_accents) {
    decompose(code, run);
  } else {
    emit(code, run);
  }
  if (chinese) {
    flush(run);
    run.end_word();
  }
}

void BertText::decompose(char32_t code, Run& run) const {
  utf8proc_int32_t parts[32];  // the longest canonical decomposition has 4
  const utf8proc_ssize_t count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(code), parts,
                                                         std::size(parts), UTF8PROC_DECOMPOSE, nullptr);
  for (utf8proc_ssize_t i = 0; i < count; ++i) {
    const auto part = static_cast<char32_t>(parts[i]);
    const bool starter = utf8proc_get_property(parts[i])->combining_class == 0;
    if (starter) flush(run);
    if ((class_of(part) & kAccent) != 0) continue;
    if (starter)
      emit(part, run);
    else
      run.marks.push_back(part);
  }
}

void BertText::flush(Run& run) const {
  if (run.marks.empty()) return;
  // Canonical order: sorted by combining class; equal classes keep their order.
  std::stable_sort(run.marks.begin(), run.marks.end(), [](char32_t a, char32_t b) {
    return utf8proc_get_property(static_cast<utf8proc_int32_t>(a))->combining_class <
           utf8proc_get_property(static_cast<utf8proc_int32_t>(b))->combining_class;
  });
  for (const char32_t mark : run.marks) emit(mark, run);
  run.marks.clear();
}

void BertText::emit(char32_t code, Run& run) const {
  std::string& bytes = run.words.bytes;
  if (rules_.lowercase) {
    if (code == 0x130) {  // the only letter whose lower case is two code points
      bytes += "i\xCC\x87";
      return;
    }
    code = static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code)));
  }
  const uint8_t bits = class_of(code);
  if ((bits & (kSpace | kPunctuation)) != 0) run.end_word();
  if ((bits & kSpace) != 0) return;
  base::append_utf8(bytes, code);
  if ((bits & kPunctuation) != 0) run.end_word();
}

}  // namespace trireme::data
