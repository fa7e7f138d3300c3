// Oniguruma's regular expressions in PCRE2's syntax.
#pragma once

#include <string>
#include <string_view>

namespace trireme::data {

/// The expression as PCRE2 reads it with the options UTF, UCP and MULTILINE, which matches what Oniguruma (as
/// the package `tokenizers` uses it: Ruby's syntax) matches. Throws unsupported naming what has no
/// counterpart, and invalid_argument for what Oniguruma refuses too. Where case is ignored, letters that
/// stand for several (ß) match these and the other way round; those of a class do not.
std::string pcre_dialect(std::string_view pattern);

}  // namespace trireme::data
