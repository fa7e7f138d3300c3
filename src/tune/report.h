// What a search found, for people and machines: text, JSON, Markdown, and a page with plots.
#pragma once

#include <string>

#include "base/text/json.h"
#include "tune/tune.h"

namespace trireme::tune {

/// "bf16, 2 x 2 threads, batches to 16 (1,2,4,8,16), window 2ms".
std::string words_of(const Candidate& candidate, const Subject& subject);
/// A few lines for the terminal.
std::string text_report(const TuneResult& result, const TuneOptions& options);
base::Json json_report(const TuneResult& result, const TuneOptions& options);
std::string markdown_report(const TuneResult& result, const TuneOptions& options);
/// One file, no scripts, no outside references.
std::string html_report(const TuneResult& result, const TuneOptions& options);

/// The command that serves what was written.
std::string serve_line(const TuneOptions& options);

}  // namespace trireme::tune
