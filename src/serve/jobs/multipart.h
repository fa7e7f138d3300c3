// Bodies of forms with files, as browsers and API clients upload them (RFC 7578).
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace trireme::serve {

/// One field of a form. Views look into the body.
struct FormPart {
  std::string name;
  std::string filename;  ///< empty: no file
  std::string_view content;
};

/// The parts of a multipart/form-data body. Throws invalid_argument for another content type, and for a body
/// that is cut off, has parts without a name, or more than 64 parts.
std::vector<FormPart> parse_form(std::string_view content_type, std::string_view body);

}  // namespace trireme::serve
