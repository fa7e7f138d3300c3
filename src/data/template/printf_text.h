// Python's % of texts.
#pragma once

#include "data/template/value.h"

namespace trireme::data::jinja {

/// `format` with %s, %r, %d, %i, %u, %x, %X, %o, %e, %f, %g, %c and %% filled from `values`, or, by %(name)s,
/// from `names` (may be null). Throws invalid_argument where they do
/// not fit, unsupported for '*' and '#'.
std::string printf_text(std::string_view format, const Value::List& values, const Dict* names,
                        Budget& budget);

}  // namespace trireme::data::jinja
