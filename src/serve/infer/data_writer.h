// Receives the JSON `data` of one input value by value, straight into its tensor.
#pragma once

#include <string_view>
#include <vector>

#include "serve/infer/wire_tensor.h"

namespace trireme::serve {

/// Takes values flat or nested as the shape says; extents of 1 may be left out or added, which Triton's
/// clients do. Throws invalid_argument for a value that does not fit the type, a nesting that does not fit
/// the shape, too many or too few values.
class DataWriter {
 public:
  DataWriter() = default;
  /// `tensor` has name, type and dims. `text_bytes` bounds how many values can follow, so that a large shape
  /// alone takes no memory.
  DataWriter(WireTensor& tensor, size_t text_bytes);

  void start_array();
  void end_array();
  void put_null();
  void put(bool value);
  void put(int64_t value);
  void put(uint64_t value);
  void put(double value);
  void put(std::string_view value);
  /// True when the outermost array has ended.
  bool is_over() const { return is_over_; }

 private:
  void place();  ///< checks that a value may stand here
  [[noreturn]] void refuse_shape() const;
  [[noreturn]] void refuse_value(std::string_view what) const;
  template <class T>
  void store(T value);
  template <class T>
  void store_integer(T value);

  WireTensor* tensor_ = nullptr;
  int64_t elements_ = 0;
  int64_t count_ = 0;              ///< values so far
  std::vector<int64_t> children_;  ///< values or arrays in each open array
  tensor::Dims extents_;           ///< length of the arrays at each depth
  size_t value_depth_ = 0;         ///< arrays around a value; 0 before the first one
  bool is_over_ = false;
};

}  // namespace trireme::serve
