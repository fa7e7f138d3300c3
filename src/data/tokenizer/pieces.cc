// Steps that split texts into pieces.
#include "data/tokenizer/pieces.h"

#include "base/utf8.h"
#include "data/tokenizer/characters.h"

namespace trireme::data {
namespace {

/// Collects the matches that `matches(add)` adds, and the stretches between them.
class Stretches {
 public:
  Stretches(std::string_view piece, bool inverted, std::vector<Stretch>& out)
      : size_(piece.size()), inverted_(inverted), out_(out) {}
  void add(size_t begin, size_t end) {
    if (begin > at_) out_.push_back({at_, begin, inverted_});
    out_.push_back({begin, end, !inverted_});
    at_ = end;
  }
  void finish() {
    if (at_ < size_) out_.push_back({at_, size_, inverted_});
  }

 private:
  size_t size_, at_ = 0;
  bool inverted_;
  std::vector<Stretch>& out_;
};

/// Joins stretches that form one piece, and drops those that are removed.
void apply(SplitBehavior behavior, std::vector<Stretch>& stretches) {
  if (behavior == SplitBehavior::isolated) return;
  std::vector<Stretch> out;
  for (const Stretch& s : stretches) {
    const Stretch* last = out.empty() ? nullptr : &out.back();
    bool joins = false;
    if (behavior == SplitBehavior::removed) {
      if (s.is_match) continue;
    } else if (behavior == SplitBehavior::contiguous) {
      joins = last != nullptr && last->is_match == s.is_match;
    } else if (behavior == SplitBehavior::merged_with_previous) {
      joins = last != nullptr && s.is_match && !last->is_match;
    } else {
      joins = last != nullptr && !s.is_match && last->is_match;
    }
    if (!joins) {
      out.push_back(s);
      continue;
    }
    out.back().end = s.end;
    // Joining completes a piece: it is marked so that the next stretch begins a new one.
    if (behavior == SplitBehavior::merged_with_previous) out.back().is_match = true;
    if (behavior == SplitBehavior::merged_with_next) out.back().is_match = false;
  }
  stretches = std::move(out);
}

}  // namespace

PieceStep split(Finder finder, SplitBehavior behavior) {
  return [finder = std::move(finder), behavior](Pieces& pieces, bool) {
    Pieces out;
    std::vector<Stretch> stretches;
    for (size_t i = 0; i < pieces.size(); ++i) {
      const std::string_view piece = pieces[i];
      stretches.clear();
      finder(piece, stretches);
      apply(behavior, stretches);
      for (const Stretch& s : stretches) {
        if (s.begin == s.end) continue;
        out.text += piece.substr(s.begin, s.end - s.begin);
        out.ends.push_back(out.text.size());
      }
    }
    pieces = std::move(out);
  };
}

PieceStep split_words(WordPattern pattern) {
  return [pattern](Pieces& pieces, bool) {
    std::vector<size_t> ends;
    for (size_t i = 0, begin = 0; i < pieces.size(); begin = pieces.ends[i++])
      append_word_ends(pieces[i], pattern, begin, ends);
    pieces.ends = std::move(ends);
  };
}

Finder find_matches(Regex regex, bool inverted) {
  return [regex = std::move(regex), inverted](std::string_view piece, std::vector<Stretch>& out) {
    Stretches stretches(piece, inverted, out);
    Regex::Scan scan(regex, piece);
    for (auto match = scan.next(); match; match = scan.next()) stretches.add(match->begin, match->end);
    stretches.finish();
  };
}

Finder find_text(std::string text, bool inverted) {
  return [text = std::move(text), inverted](std::string_view piece, std::vector<Stretch>& out) {
    Stretches stretches(piece, inverted, out);
    size_t at = text.empty() ? std::string_view::npos : piece.find(text);
    for (; at != std::string_view::npos; at = piece.find(text, at + text.size()))
      stretches.add(at, at + text.size());
    stretches.finish();
  };
}

Finder find_classes(uint8_t classes) {
  return [classes](std::string_view piece, std::vector<Stretch>& out) {
    Stretches stretches(piece, false, out);
    for (size_t at = 0, next = 0; at < piece.size(); at = next) {
      if ((character_classes(base::next_code_point(piece, next)) & classes) != 0) stretches.add(at, next);
    }
    stretches.finish();
  };
}

PieceStep metaspace(MetaspaceRules rules) {
  return [rules = std::move(rules)](Pieces& pieces, bool is_first) {
    Pieces out;
    for (size_t i = 0; i < pieces.size(); ++i) {
      std::string piece(pieces[i]);
      replace_all(piece, " ", rules.mark);
      const bool wanted = rules.prefix == MetaspaceRules::Prefix::always ||
                          (rules.prefix == MetaspaceRules::Prefix::first && is_first && i == 0);
      if (wanted && !piece.starts_with(rules.mark)) piece.insert(0, rules.mark);
      check_growth(pieces.text.size(), out.text.size() + piece.size());
      const size_t begin = out.text.size();
      if (rules.splits) {
        for (size_t at = piece.find(rules.mark, 1); at != std::string::npos;
             at = piece.find(rules.mark, at + 1))
          out.ends.push_back(begin + at);
      }
      out.text += piece;
      out.ends.push_back(out.text.size());
    }
    pieces = std::move(out);
  };
}

PieceStep bert_words() {
  return [space = split(find_classes(kSpace), SplitBehavior::removed),
          marks = split(find_classes(kPunctuation), SplitBehavior::isolated)](Pieces& pieces, bool is_first) {
    space(pieces, is_first);
    marks(pieces, is_first);
  };
}

PieceStep prefix_space() {
  return [](Pieces& pieces, bool) {
    Pieces out;
    for (size_t i = 0; i < pieces.size(); ++i) {
      if (!pieces[i].starts_with(' ')) out.text.push_back(' ');
      out.text += pieces[i];
      out.ends.push_back(out.text.size());
    }
    pieces = std::move(out);
  };
}

PieceStep in_alphabet(PieceStep step) {
  return [step = std::move(step)](Pieces& pieces, bool is_first) {
    const auto rewrite = [&](std::string (*change)(std::string_view)) {
      Pieces out;
      for (size_t i = 0; i < pieces.size(); ++i) {
        out.text += change(pieces[i]);
        out.ends.push_back(out.text.size());
      }
      pieces = std::move(out);
    };
    rewrite(to_alphabet);
    step(pieces, is_first);
    rewrite(from_alphabet);
  };
}

}  // namespace trireme::data
