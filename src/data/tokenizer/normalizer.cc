// Normalizers based on the tables of utf8proc and of BERT.
#include "data/tokenizer/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <span>

#include "base/utf8.h"
#include "data/text/bert_tables.h"
#include "data/tokenizer/characters.h"

namespace trireme::data {
namespace {

std::string mapped(std::string_view text, int flags) {
  utf8proc_uint8_t* out = nullptr;
  const auto* in = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  const utf8proc_ssize_t n = utf8proc_map(in, static_cast<utf8proc_ssize_t>(text.size()), &out,
                                          static_cast<utf8proc_option_t>(flags | UTF8PROC_STABLE));
  if (n < 0) return std::string(text);
  std::string result(reinterpret_cast<const char*>(out), static_cast<size_t>(n));
  std::free(out);
  return result;
}

/// Rewrites each code point: `write(code, out)` appends what it becomes.
template <class Write>
void each_code(std::string& text, Write write) {
  std::string out;
  out.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) write(base::next_code_point(text, pos), out);
  text = std::move(out);
}

void append_lower(char32_t code, std::string& out) {
  if (code == 0x130) {  // the only letter whose lower case is two code points
    out += "i\xCC\x87";
    return;
  }
  base::append_utf8(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code))));
}

bool is_in(std::span<const CodeRange> ranges, char32_t code) {
  const auto after = std::upper_bound(ranges.begin(), ranges.end(), code,
                                      [](char32_t c, const CodeRange& r) { return c < r.first; });
  return after != ranges.begin() && code <= std::prev(after)->last;
}

}  // namespace

NormalizerStep unicode_form(UnicodeForm form) {
  const bool composes = form == UnicodeForm::nfc || form == UnicodeForm::nfkc;
  const bool is_compatible = form == UnicodeForm::nfkc || form == UnicodeForm::nfkd;
  const int flags =
      (composes ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) | (is_compatible ? UTF8PROC_COMPAT : 0);
  return [flags](std::string& text) {
    if (!is_ascii(text)) text = mapped(text, flags);
  };
}

NormalizerStep lowercase() {
  return [](std::string& text) { each_code(text, append_lower); };
}

NormalizerStep strip_accents() {
  return [](std::string& text) {
    each_code(text, [](char32_t code, std::string& out) {
      if ((character_classes(code) & kMark) == 0) base::append_utf8(out, code);
    });
  };
}

NormalizerStep strip_space(bool left, bool right) {
  return [left, right](std::string& text) {
    const size_t begin = left ? skip_space_right(text, 0) : 0;
    const size_t end = right ? skip_space_left(text, begin, text.size()) : text.size();
    text = text.substr(begin, end - begin);
  };
}

NormalizerStep prepend(std::string prefix) {
  return [prefix = std::move(prefix)](std::string& text) {
    if (!text.empty()) text.insert(0, prefix);
  };
}

NormalizerStep replace_text(std::string from, std::string to) {
  return [from = std::move(from), to = std::move(to)](std::string& text) { replace_all(text, from, to); };
}

NormalizerStep replace_matches(Regex from, std::string to) {
  return [from = std::move(from), to = std::move(to)](std::string& text) {
    if (text.empty()) return;
    std::string out;
    size_t at = 0;
    Regex::Scan scan(from, text);
    for (auto match = scan.next(); match; match = scan.next()) {
      check_growth(text.size(), out.size() + match->begin - at + to.size());
      out.append(text, at, match->begin - at).append(to);
      at = match->end;
    }
    text = out.append(text, at);
  };
}

NormalizerStep nmt() {
  return [](std::string& text) {
    each_code(text, [](char32_t c, std::string& out) {
      const bool is_removed =
          (c >= 1 && c <= 8) || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F;
      const bool is_space = c == 9 || c == 0xA || c == 0xC || c == 0xD || c == 0x1680 ||
                            (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 || c == 0x2581 ||
                            c == 0xFEFF || c == 0xFFFD;
      if (!is_removed) base::append_utf8(out, is_space ? U' ' : c);
    });
  };
}

NormalizerStep bert_normalizer(BertTextRules rules) {
  return [rules](std::string& text) {
    each_code(text, [&](char32_t c, std::string& out) {
      if (rules.clean_text && is_in(kBertRemoved, c)) return;
      const bool is_apart = rules.handle_chinese_chars && is_in(kBertChinese, c);
      if (is_apart) out.push_back(' ');
      base::append_utf8(out, rules.clean_text && is_in(kBertSpace, c) ? U' ' : c);
      if (is_apart) out.push_back(' ');
    });
    if (rules.strip_accents) {
      if (!is_ascii(text)) text = mapped(text, UTF8PROC_DECOMPOSE);
      each_code(text, [](char32_t c, std::string& out) {
        if (!is_in(kBertAccent, c)) base::append_utf8(out, c);
      });
    }
    if (rules.lowercase) each_code(text, append_lower);
  };
}

}  // namespace trireme::data
