// Sections of a configuration: reads YAML and assignments as options; writes YAML, JSON and Markdown.
#include "train/config/config_sections.h"

#include <algorithm>

#include "base/error.h"

namespace trireme::train {
namespace {

/// Converts a mapping where a list of texts is expected: {layers: 4} -> ["layers=4"].
base::Json as_assignments(const base::Json& mapping) {
  base::Json list = base::Json::array();
  for (const base::JsonMember& member : mapping.as_object()) {
    const std::string value = member.value.is_string() ? member.value.as_string() : member.value.dump();
    list.push_back(member.key + "=" + value);
  }
  return list;
}

base::Error at_line(const base::Error& error, const std::string& source, int line) {
  return error.with(line > 0 ? base::concat(source, ":", line) : source);
}

}  // namespace

ConfigSections::Section& ConfigSections::find(std::string_view name) {
  const Section* best = nullptr;
  size_t best_distance = 0;
  for (Section& section : sections_) {
    if (section.name == name) return section;
    const size_t distance = base::edit_distance(name, section.name);
    if (best != nullptr && distance >= best_distance) continue;
    best = &section;
    best_distance = distance;
  }
  base::fail_invalid("unknown section '", name, "'; the nearest is '", best == nullptr ? "" : best->name,
                     "'");
}

void ConfigSections::set(Section& section, const std::string& key, const base::Json& value) {
  const bool list = section.options.is_list(key);
  try {
    base::Json object = base::Json::object();
    object.set(key, !list || value.is_array() ? value
                    : value.is_object()       ? as_assignments(value)
                                              : base::Json::array({value}));
    section.options.parse_json(object);
  } catch (const base::Error& e) {
    throw e.with("section '" + section.name + "'");
  }
}

void ConfigSections::read_yaml(std::string_view text, const std::string& source) {
  base::YamlDocument document;
  try {
    document = base::parse_yaml(text);
  } catch (const base::Error& e) {
    throw e.with(source);
  }
  if (document.value.is_null()) return;
  base::require(document.value.is_object(), source, ": expected sections, found ",
                document.value.type_name());
  for (const base::JsonMember& part : document.value.as_object()) {
    int line = document.line(part.key);
    try {
      Section& section = find(part.key);
      if (part.value.is_null()) continue;  // "data:" with nothing under it
      base::require(part.value.is_object(), "section '", part.key, "' holds keys, found ",
                    part.value.type_name());
      for (const base::JsonMember& member : part.value.as_object()) {
        line = document.line(part.key + "." + member.key);
        set(section, member.key, member.value);
      }
    } catch (const base::Error& e) {
      throw at_line(e, source, line);
    }
  }
}

void ConfigSections::read_section(const std::string& section, std::string_view text,
                                  const std::string& source) {
  base::YamlDocument document;
  try {
    document = base::parse_yaml(text);
  } catch (const base::Error& e) {
    throw e.with(source);
  }
  if (document.value.is_null()) return;
  base::require(document.value.is_object(), source, ": expected keys of the section '", section, "', found ",
                document.value.type_name());
  for (const base::JsonMember& member : document.value.as_object()) {
    try {
      set(find(section), member.key, member.value);
    } catch (const base::Error& e) {
      throw at_line(e, source, document.line(member.key));
    }
  }
}

void ConfigSections::assign(std::string_view assignment) {
  const size_t equals = assignment.find('=');
  const size_t point = assignment.substr(0, equals).find('.');
  base::require(equals != std::string_view::npos && point != std::string_view::npos && point > 0,
                "expected section.key=value, found '", assignment, "'");
  Section& section = find(assignment.substr(0, point));
  std::string key(assignment.substr(point + 1, equals - point - 1));
  std::replace(key.begin(), key.end(), '-', '_');
  const std::string text(assignment.substr(equals + 1));
  // YAML might read as a number what is meant as text ("run.name=7"): the type of the field decides.
  set(section, key, section.options.is_text(key) ? base::Json(text) : base::parse_yaml_value(text));
}

bool ConfigSections::given(std::string_view section, std::string_view key) const {
  return const_cast<ConfigSections*>(this)->find(section).options.given(key);
}

void ConfigSections::check_required() const {
  for (const Section& section : sections_) {
    if (section.is_optional) continue;
    try {
      section.options.check_required();
    } catch (const base::Error& e) {
      throw e.with("section '" + section.name + "'");
    }
  }
}

base::Json ConfigSections::to_json() const {
  base::Json record = base::Json::object();
  for (const Section& section : sections_) record.set(section.name, section.options.to_json());
  return record;
}

std::string ConfigSections::markdown() const {
  std::string text;
  for (const Section& section : sections_) {
    text += "\n## " + section.name + "\n\n" + section.meaning + "\n\n" + section.options.key_markdown();
  }
  return text;
}

}  // namespace trireme::train
