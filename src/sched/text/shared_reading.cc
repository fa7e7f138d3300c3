// Texts that begin, and wait for what another one is reading already.
#include "sched/text/shared_reading.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

namespace trireme::sched {
namespace {

using engine::GenerateRequest;

int64_t size_of(const std::vector<int64_t>& prompt) { return static_cast<int64_t>(prompt.size()); }

/// Full pages of `page` tokens that `request` may take once the prompt of `reader` was read, where they are
/// more than `known`; else `known`. The last token of a prompt runs in any case.
int64_t pages_in_common(const GenerateRequest& reader, const GenerateRequest& request, int64_t page,
                        int64_t known) {
  const int64_t most = std::min(size_of(reader.prompt), size_of(request.prompt) - 1) / page;
  if (most <= known || reader.scores_prompt) return known;
  if (reader.adapter != request.adapter || reader.salt != request.salt) return known;
  const auto a = reader.prompt.begin(), b = request.prompt.begin();
  // The page behind those that are known comes first: prompts that begin alike differ there.
  if (!std::equal(a + known * page, a + (known + 1) * page, b + known * page)) return known;
  const auto end = std::mismatch(a, a + most * page, b).first;
  return std::max<int64_t>(known, (end - a) / page);
}

}  // namespace

/// The number of the text that reads most of the prompt of text i beyond what is known of it; -1: none does.
int64_t SharedReading::reader_of(size_t i) const {
  const GenerateRequest& request = generator_.request(i);
  if (!generator_.options().share_prefixes || request.scores_prompt) return -1;
  const auto is_background = [&](size_t text) {
    return standings_.at(generator_.number(text)).priority == kBackground;
  };
  const int64_t page = generator_.options().page_tokens;
  int64_t known = (size_of(request.prompt) - generator_.prompt_left(i)) / page, reader = -1;
  for (size_t other = 0; other < i; ++other) {
    if (generator_.prompt_left(other) == 0) continue;
    if (is_background(other) && !is_background(i)) continue;  // it may pause
    const int64_t common = pages_in_common(generator_.request(other), request, page, known);
    if (common > known) reader = generator_.number(other);
    known = common;
  }
  return reader;
}

/// Text i reads its prompt for the first time.
void SharedReading::begin(size_t i, int64_t handed_tokens) {
  const int64_t number = generator_.number(i), whole = size_of(generator_.request(i).prompt);
  const int64_t known = whole - generator_.prompt_left(i) - handed_tokens;
  shared_tokens_ += known;
  begun_.push_back(
      {.request = number, .prompt_tokens = whole, .known_tokens = known, .handed_tokens = handed_tokens});
  queue_.charge(standings_.at(number), static_cast<double>(whole - known));
}

void SharedReading::start(TokenQueue::Entry entry) {
  generator_.start(entry.number, std::move(entry.request));
  const size_t i = generator_.size() - 1;
  const int64_t handed = generator_.session().beginnings().accepted() * generator_.options().page_tokens;
  const int64_t reader = handed > 0 ? -1 : reader_of(i);
  if (reader >= 0) {
    waiting_[entry.number] = {.reader = reader, .has_begun = entry.has_begun};
  } else if (!entry.has_begun) {
    begin(i, handed);
  }
}

void SharedReading::go_on() {
  if (waiting_.empty()) return;
  std::unordered_set<int64_t> reading;  // of the texts before text i
  for (size_t i = 0; i < generator_.size(); ++i) {
    const auto at = waiting_.find(generator_.number(i));
    if (at != waiting_.end() && !reading.contains(at->second.reader)) {
      generator_.reopen(i);
      at->second.reader = reader_of(i);
      if (at->second.reader < 0) {
        const bool has_begun = at->second.has_begun;
        waiting_.erase(at);
        if (!has_begun) begin(i, 0);
      }
    }
    if (generator_.prompt_left(i) > 0) reading.insert(generator_.number(i));
  }
}

bool SharedReading::forget(int64_t number) {
  const auto at = waiting_.find(number);
  if (at == waiting_.end()) return true;
  const bool has_begun = at->second.has_begun;
  waiting_.erase(at);
  return has_begun;
}

}  // namespace trireme::sched
