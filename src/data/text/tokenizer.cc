// Decoding in one piece, and tokenizers of single characters, for models trained on plain text.
#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/utf8.h"
#include "data/text/tokenizer.h"

namespace trireme::data {
namespace {

class Characters : public Tokenizer {
 public:
  explicit Characters(std::string_view text) {
    for (size_t pos = 0; pos < text.size();) ids_.emplace(base::next_code_point(text, pos), 0);
    for (auto& [code, id] : ids_) {
      id = static_cast<int64_t>(texts_.size());
      base::append_utf8(texts_.emplace_back(), code);
    }
  }

  std::vector<int64_t> encode(std::string_view text, bool /*special*/) const override {
    std::vector<int64_t> ids;
    for (size_t pos = 0; pos < text.size();) {
      const size_t begin = pos;
      const auto found = ids_.find(base::next_code_point(text, pos));
      if (found == ids_.end()) {
        base::fail_invalid("character '", text.substr(begin, pos - begin),
                           "' is not among those of the model's text; characters: ", ids_.size());
      }
      ids.push_back(found->second);
    }
    return ids;
  }
  std::unique_ptr<TextStream> stream() const override { return std::make_unique<Stream>(*this); }
  std::optional<int64_t> find(std::string_view token) const override {
    size_t pos = 0;
    if (token.empty()) return std::nullopt;
    const auto found = ids_.find(base::next_code_point(token, pos));
    return found == ids_.end() || pos != token.size() ? std::nullopt : std::optional(found->second);
  }
  int64_t vocabulary_size() const override { return static_cast<int64_t>(texts_.size()); }
  std::string token_bytes(int64_t id) const override {
    return id >= 0 && id < vocabulary_size() ? texts_[static_cast<size_t>(id)] : std::string();
  }
  bool is_special(int64_t /*id*/) const override { return false; }

 private:
  class Stream : public TextStream {
   public:
    explicit Stream(const Characters& from) : from_(from) {}
    std::string push(int64_t id) override { return from_.token_bytes(id); }
    std::string finish() override { return {}; }

   private:
    const Characters& from_;
  };

  std::map<char32_t, int64_t> ids_;
  std::vector<std::string> texts_;
};

}  // namespace

std::string Tokenizer::decode(const std::vector<int64_t>& ids) const {
  const auto out = stream();
  std::string text;
  for (int64_t id : ids) text += out->push(id);
  return text + out->finish();
}

std::unique_ptr<Tokenizer> character_tokenizer(std::string_view text) {
  return std::make_unique<Characters>(text);
}

void require_same_tokens(const Tokenizer& first, const Tokenizer& second) {
  const int64_t both = std::min(first.vocabulary_size(), second.vocabulary_size());
  for (int64_t id = 0; id < both; ++id) {
    const std::string one = first.token_bytes(id), other = second.token_bytes(id);
    base::require(one == other && first.is_special(id) == second.is_special(id), "token ", id, " is '", one,
                  "' for one tokenizer and '", other, "' for the other");
  }
}

}  // namespace trireme::data
