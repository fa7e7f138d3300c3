// The pipeline from text to tokens and back.
#include "data/tokenizer/piece_tokenizer.h"

#include "base/error.h"
#include "base/utf8.h"
#include "data/tokenizer/characters.h"

namespace trireme::data {
namespace {

std::vector<SpecialToken> those(const std::vector<SpecialToken>& tokens, bool is_normalized) {
  std::vector<SpecialToken> out;
  for (const SpecialToken& token : tokens) {
    if (token.is_normalized == is_normalized) out.push_back(token);
  }
  return out;
}

std::string normalize(const std::vector<NormalizerStep>& steps, std::string_view text) {
  std::string out(text);
  for (const NormalizerStep& step : steps) {
    step(out);
    check_growth(text.size(), out.size());
  }
  return out;
}

/// Tokens that are searched in normalized text must be normalized in the same way.
std::vector<SpecialToken> normalized_of(const TokenizerParts& parts) {
  std::vector<SpecialToken> out = those(parts.special, true);
  for (SpecialToken& token : out)
    token.content = token.written.empty() ? normalize(parts.normalizer, token.content) : token.written;
  return out;
}

/// "do n't ." -> "don't."
void clean_up(std::string& text) {
  constexpr std::pair<std::string_view, std::string_view> kRules[] = {
      {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
      {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [from, to] : kRules) replace_all(text, from, to);
}

}  // namespace

PieceTokenizer::PieceTokenizer(TokenizerParts parts)
    : parts_(std::move(parts)), raw_(those(parts_.special, false)), normalized_(normalized_of(parts_)) {
  for (const SpecialToken& token : parts_.special) {
    base::require(!token.content.empty(), "special token ", token.id, " has no text");
    place_token(parts_.tokens, token.id, token.content);
    special_ids_.emplace(token.content, token.id);
  }
  spelled_ = Vocabulary(parts_.tokens);
  special_kind_.assign(parts_.tokens.size(), 0);
  for (const SpecialToken& token : parts_.special) {
    const int8_t kind = token.is_special ? 1 : 2;
    special_kind_[static_cast<size_t>(token.id)] = kind;
    // Files list some tokens twice. If two texts share an id, the last one is kept; spelled_ lacks the first.
    const int32_t spelled = spelled_.find(token.content);
    if (spelled != Vocabulary::kNone) special_kind_[static_cast<size_t>(spelled)] = kind;
  }
  for (const int64_t id : parts_.before)
    base::require(id >= 0 && id < vocabulary_size(), "template token ", id);
  for (const int64_t id : parts_.behind)
    base::require(id >= 0 && id < vocabulary_size(), "template token ", id);
}

std::optional<int64_t> PieceTokenizer::find(std::string_view token) const {
  if (const auto found = special_ids_.find(std::string(token)); found != special_ids_.end())
    return found->second;
  const int32_t id = spelled_.find(token);
  return id == Vocabulary::kNone ? std::nullopt : std::optional<int64_t>(id);
}

std::vector<int64_t> PieceTokenizer::encode(std::string_view given, bool special) const {
  const std::string repaired = base::is_utf8(given) ? std::string() : well_formed(given);
  const std::string_view text = repaired.empty() ? given : repaired;
  std::vector<int64_t> ids;
  if (special) ids = parts_.before;
  size_t begin = 0;
  for (auto found = raw_.find(text, 0); found; found = raw_.find(text, begin)) {
    encode_section(text.substr(begin, found->begin - begin), begin == 0, ids);
    ids.push_back(found->token->id);
    begin = found->end;
  }
  encode_section(text.substr(begin), begin == 0, ids);
  if (special) ids.insert(ids.end(), parts_.behind.begin(), parts_.behind.end());
  return ids;
}

void PieceTokenizer::encode_section(std::string_view section, bool is_first,
                                    std::vector<int64_t>& ids) const {
  if (section.empty()) return;
  const bool is_later = !is_first && !parts_.later_normalizer.empty();
  const std::string text = normalize(is_later ? parts_.later_normalizer : parts_.normalizer, section);
  size_t begin = 0;
  for (auto found = normalized_.find(text, 0); found; found = normalized_.find(text, begin)) {
    encode_normalized(std::string_view(text).substr(begin, found->begin - begin), is_first && begin == 0,
                      ids);
    ids.push_back(found->token->id);
    begin = found->end;
  }
  encode_normalized(std::string_view(text).substr(begin), is_first && begin == 0, ids);
}

void PieceTokenizer::encode_normalized(std::string_view text, bool is_first,
                                       std::vector<int64_t>& ids) const {
  if (text.empty()) return;
  if (parts_.pre_tokenizer.empty()) return parts_.model->append(text, ids);
  Pieces pieces{std::string(text), {text.size()}};
  for (const PieceStep& step : parts_.pre_tokenizer) {
    step(pieces, is_first);
    check_growth(text.size(), pieces.text.size());
  }
  for (size_t i = 0; i < pieces.size(); ++i) parts_.model->append(pieces[i], ids);
}

bool PieceTokenizer::is_special(int64_t id) const {
  return id >= 0 && id < vocabulary_size() && special_kind_[static_cast<size_t>(id)] == 1;
}

bool PieceTokenizer::is_byte(int64_t id) const {
  return parts_.decoder.has_bytes && byte_of_name(parts_.tokens[static_cast<size_t>(id)]) >= 0;
}

/// The bytes that a token adds to a text.
std::string PieceTokenizer::shown(int64_t id, bool is_first) const {
  const DecodeRules& rules = parts_.decoder;
  if (id < 0 || id >= vocabulary_size() || is_special(id)) return {};
  const std::string& token = parts_.tokens[static_cast<size_t>(id)];
  if (is_byte(id)) return std::string(1, static_cast<char>(byte_of_name(token)));
  std::string text = rules.is_byte_level ? from_alphabet(token) : token;
  for (const auto& [from, to] : rules.replaced) {
    replace_all(text, from, is_first && from == rules.first_mark ? "" : to);
    check_growth(token.size(), text.size());
  }
  if (rules.is_word_piece && !is_first) {
    if (!rules.word_prefix.empty() && text.starts_with(rules.word_prefix))
      text.erase(0, rules.word_prefix.size());
    else if (!text.empty())
      text.insert(0, " ");
  }
  if (rules.is_word_piece && rules.cleans_up) clean_up(text);
  if (rules.joins_by_space && !is_first) text.insert(0, " ");
  if (!rules.word_suffix.empty()) replace_all(text, rules.word_suffix, " ");
  return text;
}

std::string PieceTokenizer::token_bytes(int64_t id) const { return shown(id, false); }

/// Holds back bytes that may still become a character, and spaces that decoding may drop.
class PieceTokenizer::Stream : public TextStream {
 public:
  explicit Stream(const PieceTokenizer& from)
      : from_(from),
        strips_start_(from.parts_.decoder.strips_start),
        strips_end_(from.parts_.decoder.strips_end) {
    if (!from.parts_.decoder.word_suffix.empty()) strips_end_ = 1;
  }

  std::string push(int64_t id) override {
    std::string text = from_.shown(id, is_first_);
    if (id >= 0 && id < from_.vocabulary_size() && !from_.is_special(id)) is_first_ = false;
    if (text.empty()) return {};
    const bool is_byte_level = from_.parts_.decoder.is_byte_level;
    // A token of text cannot complete a character that byte tokens have begun.
    std::string out = is_byte_level || from_.is_byte(id) ? std::string() : flush();
    held_ += text;
    const size_t whole = whole_prefix(held_);
    out += well_formed(std::string_view(held_).substr(0, whole));
    held_.erase(0, whole);
    return strip(std::move(out));
  }

  std::string finish() override {
    std::string rest = spaces_ + without_start(flush());
    spaces_.clear();
    for (int i = 0; i < strips_end_ && rest.ends_with(' '); ++i) rest.pop_back();
    return rest;
  }

 private:
  std::string flush() {
    // Each stray byte token gives one replacement character, as in the tokenizers package.
    std::string out;
    if (from_.parts_.decoder.is_byte_level) {
      out = well_formed(held_);
    } else {
      for (size_t i = 0; i < held_.size(); ++i) base::append_utf8(out, base::kReplacement);
    }
    held_.clear();
    return out;
  }
  std::string without_start(std::string text) {
    while (strips_start_ > 0 && !text.empty()) {
      if (text[0] != ' ') {
        strips_start_ = 0;
        break;
      }
      text.erase(0, 1);
      --strips_start_;
    }
    return text;
  }
  /// Holds back the last spaces if the end of the text loses some.
  std::string strip(std::string text) {
    text = spaces_ + without_start(std::move(text));
    spaces_.clear();
    for (int i = 0; i < strips_end_ && text.ends_with(' '); ++i) {
      text.pop_back();
      spaces_.push_back(' ');
    }
    return text;
  }

  const PieceTokenizer& from_;
  std::string held_, spaces_;
  int strips_start_, strips_end_;
  bool is_first_ = true;
};

std::unique_ptr<TextStream> PieceTokenizer::stream() const { return std::make_unique<Stream>(*this); }

std::string PieceTokenizer::decode(const std::vector<int64_t>& ids) const {
  if (!parts_.decoder.has_bytes) return Tokenizer::decode(ids);
  // A run of byte tokens is text if all of it is valid; otherwise each of its bytes becomes U+FFFD.
  std::string out, run;
  bool is_first = true;
  const auto end_run = [&] {
    const bool is_text = base::is_utf8(run);
    if (is_text) out += run;
    for (size_t i = 0; !is_text && i < run.size(); ++i) base::append_utf8(out, base::kReplacement);
    run.clear();
  };
  for (const int64_t id : ids) {
    if (id < 0 || id >= vocabulary_size() || is_special(id)) continue;
    const std::string text = shown(id, is_first);
    is_first = false;
    if (is_byte(id)) {
      run += text;
      continue;
    }
    end_run();
    out += text;
  }
  end_run();
  for (int i = 0; i < parts_.decoder.strips_start && out.starts_with(' '); ++i) out.erase(0, 1);
  for (int i = 0; i < parts_.decoder.strips_end && out.ends_with(' '); ++i) out.pop_back();
  return out;
}

}  // namespace trireme::data
