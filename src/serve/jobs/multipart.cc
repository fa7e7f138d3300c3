// Parses bodies of forms that contain files.
#include "serve/jobs/multipart.h"

#include "base/error.h"
#include "http/message.h"

namespace trireme::serve {
namespace {

constexpr size_t kMostParts = 64, kMostBoundary = 70, kMostHead = 8192;

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

/// The value of `; name=value` or `; name="value"` after a header's first word; `found` tells whether it is
/// present.
std::string parameter(std::string_view header, std::string_view name, bool& found) {
  found = false;
  for (size_t at = header.find(';'); at != std::string_view::npos;) {
    ++at;
    const size_t equals = header.find('=', at);
    if (equals == std::string_view::npos) return {};
    const std::string_view key = trimmed(header.substr(at, equals - at));
    std::string value;
    size_t end = equals + 1;
    if (end < header.size() && header[end] == '"') {
      for (++end; end < header.size() && header[end] != '"'; ++end) {
        if (header[end] == '\\' && end + 1 < header.size()) ++end;
        value += header[end];
      }
      end = header.find(';', end);
    } else {
      end = header.find(';', end);
      value = trimmed(header.substr(equals + 1, end == std::string_view::npos ? end : end - equals - 1));
    }
    if (http::iequals(key, name)) {
      found = true;
      return value;
    }
    at = end;
  }
  return {};
}

/// The value of a header of a part; empty if the part has no such header.
std::string_view header_of(std::string_view head, std::string_view name) {
  while (!head.empty()) {
    const size_t end = head.find("\r\n");
    const std::string_view line = head.substr(0, end);
    const size_t colon = line.find(':');
    if (colon != std::string_view::npos && http::iequals(trimmed(line.substr(0, colon)), name))
      return trimmed(line.substr(colon + 1));
    head.remove_prefix(end == std::string_view::npos ? head.size() : end + 2);
  }
  return {};
}

FormPart part_of(std::string_view bytes) {
  const size_t blank = bytes.substr(0, kMostHead).find("\r\n\r\n");
  base::require(blank != std::string_view::npos, "a part of the form has no end of its head");
  const std::string_view disposition = header_of(bytes.substr(0, blank), "Content-Disposition");
  FormPart part;
  bool has_name = false, has_file = false;
  part.name = parameter(disposition, "name", has_name);
  part.filename = parameter(disposition, "filename", has_file);
  base::require(has_name && !part.name.empty(), "a part of the form has no name");
  part.content = bytes.substr(blank + 4);
  return part;
}

}  // namespace

std::vector<FormPart> parse_form(std::string_view content_type, std::string_view body) {
  const std::string_view type = trimmed(content_type.substr(0, content_type.find(';')));
  base::require(http::iequals(type, "multipart/form-data"), "expected a body of multipart/form-data, found '",
                type.substr(0, 80), "'");
  bool found = false;
  const std::string boundary = parameter(content_type, "boundary", found);
  base::require(!boundary.empty() && boundary.size() <= kMostBoundary, "the content type names no boundary");
  const std::string line = "\r\n--" + boundary;
  // Text before the first boundary is ignored; this boundary need not follow a line end.
  size_t at = body.starts_with(std::string_view(line).substr(2)) ? line.size() - 2 : body.find(line);
  base::require(at != std::string_view::npos, "the body has no boundary '--", boundary, "'");
  if (!body.starts_with(std::string_view(line).substr(2))) at += line.size();
  std::vector<FormPart> parts;
  while (!body.substr(at).starts_with("--")) {
    const size_t begin = body.find("\r\n", at);
    const size_t end = begin == std::string_view::npos ? begin : body.find(line, begin);
    base::require(end != std::string_view::npos, "the form is cut off");
    base::require(trimmed(body.substr(at, begin - at)).empty(), "a boundary of the form goes on in its line");
    base::require(parts.size() < kMostParts, "a form of more than ", kMostParts, " parts");
    base::require(end >= begin + 2, "a part of the form has no end of its head");
    parts.push_back(part_of(body.substr(begin + 2, end - begin - 2)));
    at = end + line.size();
  }
  return parts;
}

}  // namespace trireme::serve
