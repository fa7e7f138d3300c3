// Byte pair encoding: special tokens, words, merges in the order of their rank, and the way back to text.
#include "data/text/bpe.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <queue>

#include "base/error.h"
#include "base/utf8.h"

namespace trireme::data {
namespace {

constexpr int32_t kNone = -1;

/// GPT-2's alphabet: printable bytes stand for themselves, the others for code points from U+0100 on.
std::array<char32_t, 256> byte_alphabet() {
  std::array<char32_t, 256> letters{};
  char32_t next = 256;
  for (size_t byte = 0; byte < 256; ++byte) {
    const bool is_shown = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    letters[byte] = is_shown ? static_cast<char32_t>(byte) : next++;
  }
  return letters;
}

std::string utf8(char32_t code) {
  std::string out;
  base::append_utf8(out, code);
  return out;
}

/// The bytes that a token in GPT-2's alphabet stands for; the token itself if it has other letters.
std::string from_alphabet(const std::string& token) {
  static const std::unordered_map<char32_t, char> kBytes = [] {
    std::unordered_map<char32_t, char> map;
    const auto letters = byte_alphabet();
    for (size_t byte = 0; byte < 256; ++byte) map[letters[byte]] = static_cast<char>(byte);
    return map;
  }();
  std::string out;
  for (size_t pos = 0; pos < token.size();) {
    const auto found = kBytes.find(base::next_code_point(token, pos));
    if (found == kBytes.end()) return token;
    out.push_back(found->second);
  }
  return out;
}

uint64_t pair_key(int32_t a, int32_t b) {
  return static_cast<uint64_t>(static_cast<uint32_t>(a)) << 32 | static_cast<uint32_t>(b);
}

std::string nfc(std::string_view text) {
  utf8proc_uint8_t* out = nullptr;
  const auto* in = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  const auto flags = static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE);
  const utf8proc_ssize_t n = utf8proc_map(in, static_cast<utf8proc_ssize_t>(text.size()), &out, flags);
  if (n < 0) return std::string(text);  // ill-formed UTF-8 stays as it is
  std::string result(reinterpret_cast<const char*>(out), static_cast<size_t>(n));
  std::free(out);
  return result;
}

/// "<0x0A>" -> 10, else -1.
int fallback_byte(const std::string& token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return -1;
  char* end = nullptr;
  const long value = std::strtol(token.c_str() + 3, &end, 16);
  return end == token.c_str() + 5 ? static_cast<int>(value) : -1;
}

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (size_t at = 0; !from.empty() && (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
}

/// Bytes of `text` up to which it is whole characters: what is behind may become one.
size_t whole_prefix(std::string_view text) {
  for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
    const auto byte = static_cast<uint8_t>(text[text.size() - back]);
    if ((byte & 0xC0) == 0x80) continue;
    const size_t length = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : byte >= 0xC0 ? 2 : 1;
    return length > back ? text.size() - back : text.size();
  }
  return text.size();
}

/// Well-formed UTF-8, ill-formed sequences as U+FFFD.
std::string lossy(std::string_view bytes) {
  std::string out;
  for (size_t pos = 0; pos < bytes.size();) base::append_utf8(out, base::next_code_point(bytes, pos));
  return out;
}

}  // namespace

std::string Tokenizer::decode(const std::vector<int64_t>& ids) const {
  const auto out = stream();
  std::string text;
  for (int64_t id : ids) text += out->push(id);
  return text + out->finish();
}

Bpe::Bpe(std::vector<std::string> tokens, const std::vector<std::pair<std::string, std::string>>& merges,
         BpeOptions options, std::vector<SpecialToken> special)
    : options_(std::move(options)), tokens_(std::move(tokens)), special_(std::move(special)) {
  for (const SpecialToken& t : special_) {
    base::require(t.id >= 0 && t.id < kMostTokens && !t.content.empty(), "special token '", t.content,
                  "' has the id ", t.id);
    if (t.id >= vocabulary_size()) tokens_.resize(static_cast<size_t>(t.id) + 1);
    tokens_[static_cast<size_t>(t.id)] = t.content;
    begins_special_[static_cast<uint8_t>(t.content[0])] = true;
  }
  for (size_t i = 0; i < tokens_.size(); ++i) {
    if (!tokens_[i].empty()) ids_.emplace(tokens_[i], static_cast<int32_t>(i));
  }
  std::stable_sort(special_.begin(), special_.end(),
                   [](const auto& a, const auto& b) { return a.content.size() > b.content.size(); });
  special_kind_.assign(tokens_.size(), 0);
  for (const SpecialToken& t : special_) special_kind_[static_cast<size_t>(t.id)] = t.is_special ? 1 : 2;
  int32_t rank = 0;
  for (const auto& [left, right] : merges) {
    const int32_t a = id_of(left), b = id_of(right), both = id_of(left + right);
    base::require(a != kNone && b != kNone && both != kNone, "merge of '", left, "' and '", right,
                  "', which are not in the vocabulary");
    merges_.emplace(pair_key(a, b), Merge{rank++, both});
  }
  const auto letters = byte_alphabet();
  for (size_t byte = 0; byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof(name), "<0x%02X>", static_cast<unsigned>(byte));
    byte_ids_[byte] = id_of(options_.byte_level ? utf8(letters[byte]) : name);
  }
}

int32_t Bpe::id_of(std::string_view token) const {
  const auto found = ids_.find(token);
  return found == ids_.end() ? kNone : found->second;
}

std::optional<int64_t> Bpe::find(std::string_view token) const {
  const int32_t id = id_of(token);
  return id == kNone ? std::nullopt : std::optional<int64_t>(id);
}

const SpecialToken* Bpe::special_at(std::string_view text, size_t pos) const {
  if (!begins_special_[static_cast<uint8_t>(text[pos])]) return nullptr;
  const std::string_view rest = text.substr(pos);
  for (const SpecialToken& t : special_) {
    if (!rest.starts_with(t.content)) continue;
    if (!t.single_word) return &t;
    size_t before = pos, after = pos + t.content.size();
    while (before > 0 && (static_cast<uint8_t>(text[--before]) & 0xC0) == 0x80) {
    }
    const bool left = pos > 0 && is_word_character(base::next_code_point(text, before));
    const bool right = after < text.size() && is_word_character(base::next_code_point(text, after));
    if (!left && !right) return &t;
  }
  return nullptr;
}

std::vector<int64_t> Bpe::encode(std::string_view text, bool special) const {
  std::vector<int64_t> ids;
  if (special) ids = options_.before;
  size_t begin = 0;  // of the section that no special token has ended yet
  for (size_t pos = 0; pos < text.size();) {
    const SpecialToken* found = special_at(text, pos);
    if (found == nullptr) {
      ++pos;
      continue;
    }
    size_t end = pos;
    while (found->lstrip && end > begin) {
      size_t start = end - 1;
      while (start > begin && (static_cast<uint8_t>(text[start]) & 0xC0) == 0x80) --start;
      size_t next = start;
      if (!is_white_space(base::next_code_point(text, next))) break;
      end = start;
    }
    encode_section(text.substr(begin, end - begin), begin == 0, ids);
    ids.push_back(found->id);
    pos += found->content.size();
    while (found->rstrip && pos < text.size()) {
      size_t next = pos;
      if (!is_white_space(base::next_code_point(text, next))) break;
      pos = next;
    }
    begin = pos;
  }
  encode_section(text.substr(begin), begin == 0, ids);
  if (special) ids.insert(ids.end(), options_.behind.begin(), options_.behind.end());
  return ids;
}

/// The text with spaces as the vocabulary writes them.
std::string Bpe::marked(std::string_view text, bool is_first) const {
  std::string out(text);
  if (options_.byte_level) {
    if (options_.add_prefix_space && out[0] != ' ') out.insert(0, " ");
    return out;
  }
  replace_all(out, " ", options_.space);
  const bool wanted = options_.prefix == BpeOptions::Prefix::always ||
                      (options_.prefix == BpeOptions::Prefix::first && is_first);
  if (wanted && !(options_.skips_marked && out.starts_with(options_.space))) out.insert(0, options_.space);
  return out;
}

void Bpe::encode_section(std::string_view text, bool is_first, std::vector<int64_t>& ids) const {
  if (text.empty()) return;
  const std::string clean = marked(options_.normalize_nfc ? nfc(text) : text, is_first);
  std::vector<size_t> ends;
  if (options_.splits_at_space) {
    for (size_t at = clean.find(options_.space, 1); at != std::string::npos;
         at = clean.find(options_.space, at + 1))
      ends.push_back(at);
    ends.push_back(clean.size());
  } else {
    append_word_ends(clean, options_.byte_level ? options_.pattern : WordPattern::none, ends);
  }
  size_t begin = 0;
  for (size_t end : ends) {
    encode_word(std::string_view(clean).substr(begin, end - begin), ids);
    begin = end;
  }
}

void Bpe::append_symbols(std::string_view word, std::vector<int32_t>& symbols) const {
  const int32_t unknown = options_.unknown.empty() ? kNone : id_of(options_.unknown);
  const auto append_unknown = [&] {
    if (unknown == kNone || (options_.fuses_unknown && !symbols.empty() && symbols.back() == unknown)) return;
    symbols.push_back(unknown);
  };
  if (options_.byte_level) {
    for (char c : word) {
      const int32_t id = byte_ids_[static_cast<uint8_t>(c)];
      id == kNone ? append_unknown() : symbols.push_back(id);
    }
    return;
  }
  for (size_t pos = 0; pos < word.size();) {
    const size_t start = pos;
    base::next_code_point(word, pos);
    const std::string_view character = word.substr(start, pos - start);
    const int32_t id = id_of(character);
    if (id != kNone) {
      symbols.push_back(id);
      continue;
    }
    const bool has_bytes = options_.byte_fallback &&
                           std::all_of(character.begin(), character.end(),
                                       [&](char c) { return byte_ids_[static_cast<uint8_t>(c)] != kNone; });
    if (!has_bytes) append_unknown();
    for (char c : has_bytes ? character : std::string_view())
      symbols.push_back(byte_ids_[static_cast<uint8_t>(c)]);
  }
}

/// Merges neighbours, the pair of the lowest rank first, the leftmost of equals.
void Bpe::merge(std::vector<int32_t>& symbols) const {
  struct Candidate {
    int32_t rank, at, left, right, id;
    bool operator>(const Candidate& o) const { return rank != o.rank ? rank > o.rank : at > o.at; }
  };
  const auto n = static_cast<int32_t>(symbols.size());
  std::vector<int32_t> next(symbols.size()), previous(symbols.size());
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto offer = [&](int32_t a, int32_t b) {
    if (a < 0 || b >= n) return;
    const int32_t left = symbols[static_cast<size_t>(a)], right = symbols[static_cast<size_t>(b)];
    const auto found = merges_.find(pair_key(left, right));
    if (found != merges_.end()) queue.push({found->second.rank, a, left, right, found->second.id});
  };
  for (int32_t i = 0; i < n; ++i) {
    next[static_cast<size_t>(i)] = i + 1;
    previous[static_cast<size_t>(i)] = i - 1;
    offer(i, i + 1);
  }
  while (!queue.empty()) {
    const Candidate c = queue.top();
    queue.pop();
    const auto a = static_cast<size_t>(c.at);
    const int32_t b = next[a];
    // One of the two may have been merged since.
    if (symbols[a] != c.left || b >= n || symbols[static_cast<size_t>(b)] != c.right) continue;
    symbols[a] = c.id;
    symbols[static_cast<size_t>(b)] = kNone;
    next[a] = next[static_cast<size_t>(b)];
    if (next[a] < n) previous[static_cast<size_t>(next[a])] = c.at;
    offer(previous[a], c.at);
    offer(c.at, next[a]);
  }
  std::erase(symbols, kNone);
}

void Bpe::encode_word(std::string_view word, std::vector<int64_t>& ids) const {
  if (options_.ignores_merges) {
    std::string spelled;
    if (options_.byte_level) {
      static const std::array<char32_t, 256> kLetters = byte_alphabet();
      for (char c : word) base::append_utf8(spelled, kLetters[static_cast<uint8_t>(c)]);
    }
    const int32_t id = id_of(options_.byte_level ? spelled : word);
    if (id != kNone) return ids.push_back(id);
  }
  std::vector<int32_t> symbols;
  append_symbols(word, symbols);
  merge(symbols);
  ids.insert(ids.end(), symbols.begin(), symbols.end());
}

/// What a token adds to the bytes of a text.
std::string Bpe::bytes_of(int64_t id) const {
  if (id < 0 || id >= vocabulary_size()) return {};
  const auto at = static_cast<size_t>(id);
  if (special_kind_[at] == 1) return {};
  const std::string& token = tokens_[at];
  if (options_.byte_level) return from_alphabet(token);
  const int byte = options_.byte_fallback ? fallback_byte(token) : -1;
  if (byte >= 0) return std::string(1, static_cast<char>(byte));
  std::string text = token;
  replace_all(text, options_.space, " ");
  return text;
}

/// Holds back bytes that may still become a character, and at the start the spaces that decoding drops.
class Bpe::Stream : public TextStream {
 public:
  explicit Stream(const Bpe& bpe) : bpe_(bpe), strips_(bpe.options_.strips_start) {}

  std::string push(int64_t id) override {
    std::string text = bpe_.bytes_of(id);
    if (text.empty()) return {};
    if (is_first_ && bpe_.options_.drops_first_spaces) replace_all(text, " ", "");
    is_first_ = false;
    const bool is_byte = !bpe_.options_.byte_level && bpe_.options_.byte_fallback &&
                         fallback_byte(bpe_.tokens_[static_cast<size_t>(id)]) >= 0;
    // Text cannot complete a character that bytes have begun.
    std::string out = is_byte || bpe_.options_.byte_level ? std::string() : flush();
    held_ += text;
    const size_t whole = whole_prefix(held_);
    out += lossy(std::string_view(held_).substr(0, whole));
    held_.erase(0, whole);
    return strip(std::move(out));
  }

  std::string finish() override { return strip(flush()); }

 private:
  std::string flush() {
    // Of tokens that are bytes each stray one counts, as in the package this follows.
    std::string out;
    if (bpe_.options_.byte_level) {
      out = lossy(held_);
    } else {
      for (size_t i = 0; i < held_.size(); ++i) base::append_utf8(out, base::kReplacement);
    }
    held_.clear();
    return out;
  }
  std::string strip(std::string text) {
    while (strips_ > 0 && !text.empty()) {
      if (text[0] != ' ') {
        strips_ = 0;
        break;
      }
      text.erase(0, 1);
      --strips_;
    }
    return text;
  }

  const Bpe& bpe_;
  std::string held_;
  int strips_;
  bool is_first_ = true;
};

std::unique_ptr<TextStream> Bpe::stream() const { return std::make_unique<Stream>(*this); }

std::string Bpe::decode(const std::vector<int64_t>& ids) const {
  if (options_.byte_level || !options_.byte_fallback) return Tokenizer::decode(ids);
  // A run of byte tokens is text if all of it is, else every byte of it is U+FFFD.
  std::string out, run;
  const auto end_run = [&] {
    if (base::is_utf8(run)) out += run;
    for (size_t i = 0; i < (base::is_utf8(run) ? 0 : run.size()); ++i)
      base::append_utf8(out, base::kReplacement);
    run.clear();
  };
  for (int64_t id : ids) {
    const std::string text = bytes_of(id);
    if (text.empty()) continue;
    if (fallback_byte(tokens_[static_cast<size_t>(id)]) >= 0) {
      run += text;
      continue;
    }
    end_run();
    out += text;
  }
  end_run();
  for (int i = 0; i < options_.strips_start && out.starts_with(' '); ++i) out.erase(0, 1);
  return out;
}

}  // namespace trireme::data
