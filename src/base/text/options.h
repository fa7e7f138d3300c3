// Options: one struct with one field list yields flags, JSON keys, help, documentation and the record of a
// run.
//
//   struct LoadOptions {
//     std::string url;
//     int concurrency = 8;
//     Duration window{50 * kNsPerMs};
//     Arrival arrival = Arrival::closed;
//     void fields(OptionList& f) {
//       f.add("url", &url, "server to load").positional().required();
//       f.add("concurrency", &concurrency, "requests in flight").at_least(1);
//       f.add("window", &window, "how long to wait for a fuller batch");
//       f.add_choice("arrival", &arrival, {"closed", "poisson", "fixed"}, "when requests are sent");
//     }
//   };
//
// A name is snake_case; its flag has dashes (max_batch: --max-batch). The defaults are the struct's
// initializers.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <list>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "base/text/json.h"

namespace trireme::base {

/// A length of time, written "250us", "50ms", "1.5s", "2m", "1h".
struct Duration {
  int64_t ns = 0;
  auto operator<=>(const Duration&) const = default;
};

/// A size in bytes, written "4096", "512KiB", "2GiB", "1.5GB".
struct ByteSize {
  int64_t bytes = 0;
  auto operator<=>(const ByteSize&) const = default;
};

/// Throw invalid_argument for text of another form or out of range.
Duration parse_duration(std::string_view text);
ByteSize parse_byte_size(std::string_view text);
/// Exact, in the largest unit that divides the value.
std::string to_string(Duration duration);
std::string to_string(ByteSize size);

/// An enumeration by its names: index = value.
struct ChoiceTarget {
  std::vector<std::string> names;
  std::function<size_t()> get;
  std::function<void(size_t)> set;
};

using OptionTarget = std::variant<bool*, int*, int64_t*, double*, std::string*, Duration*, ByteSize*,
                                  std::vector<std::string>*, std::vector<int64_t>*, ChoiceTarget>;

/// Edits (insert, delete, replace a letter) that turn one word into the other.
size_t edit_distance(std::string_view a, std::string_view b);

/// One field of an options struct. The fluent calls return the option itself.
class Option {
 public:
  Option(std::string name, OptionTarget target, std::string help);

  /// Taken from arguments without a flag, in the order of the list; a list takes all that are left.
  Option& positional();
  /// Must be given, on the command line or in JSON.
  Option& required();
  /// Bounds for numbers (inclusive), checked whenever a value is set; for lists, each item.
  Option& at_least(double minimum);
  Option& at_most(double maximum);

  const std::string& name() const { return name_; }
  bool given() const { return given_; }

 private:
  friend class OptionList;
  void set_text(std::string_view text);  // one value of a flag; a list appends after the first
  void set_json(const Json& value);
  void check_bounds(double value) const;
  Json json() const;
  std::string flag() const;
  std::string value_word() const;  // "N", "TEXT", "closed|poisson", ... or empty for a switch
  std::string default_text() const;
  std::string meaning() const;  // help with the default

  std::string name_;
  OptionTarget target_;
  std::string help_;
  Json default_;
  bool positional_ = false;
  bool required_ = false;
  bool given_ = false;
  double minimum_ = -std::numeric_limits<double>::infinity();
  double maximum_ = std::numeric_limits<double>::infinity();
};

/// The fields of one options struct, bound to its members; lives no longer than the struct.
class OptionList {
 public:
  OptionList() = default;
  template <class Options>
  explicit OptionList(Options& options) {
    options.fields(*this);
  }
  OptionList(const OptionList&) = delete;
  OptionList& operator=(const OptionList&) = delete;

  Option& add(std::string name, OptionTarget target, std::string help);
  template <class Enum>
  Option& add_choice(std::string name, Enum* value, std::vector<std::string> names, std::string help) {
    static_assert(std::is_enum_v<Enum>);
    ChoiceTarget target{std::move(names), [value] { return static_cast<size_t>(*value); },
                        [value](size_t i) { *value = static_cast<Enum>(i); }};
    return add(std::move(name), std::move(target), std::move(help));
  }

  /// Sets fields from command line words: `--name value`, `--name=value`, `--switch`, `--no-switch`,
  /// positional words; after `--` all words are positional. Returns false if `--help` or `-h` is among them
  /// (then nothing is checked). An unknown flag is an error that names the nearest known one.
  bool parse_flags(std::span<const std::string> words);
  /// Sets fields from an object; unknown keys are errors likewise. Does not check required().
  void parse_json(const Json& object);
  /// Throws if a required field was not given. parse_flags calls it.
  void check_required() const;

  bool given(std::string_view name) const;
  /// What form a field takes; false for names it does not have.
  bool is_text(std::string_view name) const;
  bool is_list(std::string_view name) const;
  /// Every field with its present value: what parse_json takes back.
  Json to_json() const;
  /// One line a field, aligned: flag, meaning, default.
  std::string help() const;
  /// "URL [FILES...] [options]", for the usage line.
  std::string usage() const;
  /// A Markdown table of the fields.
  std::string markdown() const;
  /// The same for fields that are only keys of a file.
  std::string key_markdown() const;

 private:
  Option* find(std::string_view name);
  std::string nearest(std::string_view name) const;
  Option& next_positional(std::string_view word);
  void parse_flag(std::span<const std::string> words, size_t& i);

  std::list<Option> options_;  // a list: references that add() returned stay valid
};

}  // namespace trireme::base
