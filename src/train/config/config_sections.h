// A configuration in sections: several options structs filled from one YAML file and from assignments.
#pragma once

#include <list>
#include <string>
#include <string_view>
#include <vector>

#include "base/text/options.h"
#include "base/text/yaml.h"

namespace trireme::train {

/// Named sections, each bound to an options struct that outlives this. Errors name the file, the line, the
/// section and, for unknown words, the nearest known one.
class ConfigSections {
 public:
  ConfigSections() = default;
  ConfigSections(const ConfigSections&) = delete;
  ConfigSections& operator=(const ConfigSections&) = delete;

  template <class Options>
  void add(std::string name, Options& options, std::string meaning) {
    sections_.emplace_back(std::move(name), std::move(meaning), options);
  }
  /// A section whose required keys need not be given.
  template <class Options>
  void add_optional(std::string name, Options& options, std::string meaning) {
    add(std::move(name), options, std::move(meaning));
    sections_.back().is_optional = true;
  }

  /// Sets what a YAML mapping of mappings gives; `source` names the text in messages. A mapping given for a
  /// list of texts becomes "key=value" items: model: {config: {layers: 4}} is config: ["layers=4"].
  void read_yaml(std::string_view text, const std::string& source);
  /// Sets what a YAML mapping of one section's keys gives.
  void read_section(const std::string& section, std::string_view text, const std::string& source);
  /// "section.key=value", the value as YAML would read it; a text field takes the value as it stands.
  void assign(std::string_view assignment);

  bool given(std::string_view section, std::string_view key) const;
  /// Throws invalid_argument naming the first required key that nobody gave.
  void check_required() const;

  /// Every key with its present value, by section.
  base::Json to_json() const;
  /// The same as a file that read_yaml takes back.
  std::string to_yaml() const { return base::to_yaml(to_json()); }
  /// A Markdown page part: a heading, the meaning and a table for each section.
  std::string markdown() const;

 private:
  struct Section {
    template <class Options>
    Section(std::string n, std::string m, Options& o)
        : name(std::move(n)), meaning(std::move(m)), options(o) {}
    std::string name;
    std::string meaning;
    base::OptionList options;
    bool is_optional = false;
  };
  Section& find(std::string_view name);
  void set(Section& section, const std::string& key, const base::Json& value);

  std::list<Section> sections_;
};

}  // namespace trireme::train
