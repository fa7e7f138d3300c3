// What the load generator sends: whole HTTP messages or gRPC calls made from files, sentences, or a KServe v2
// model's metadata.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/text/json.h"
#include "load/load_options.h"
#include "load/requests/target.h"

namespace trireme::load {

struct Payload {
  http::Url url;
  Target target;
  std::vector<std::string> models;    // of KServe v2, whose statistics are asked for
  std::string prefix;                 // of their paths
  http::HeaderList headers;           // for those calls too
  std::vector<std::string> requests;  // head and body
  std::vector<std::string> warm_up;   // what is sent before a scenario or trace begins; empty: requests
  int64_t items_per_request = 1;      // sentences or batch rows
  // A mix only: names of the classes, the class of each request, and the order in which they are sent.
  std::vector<std::string> classes;
  std::vector<size_t> class_of;
  std::vector<size_t> order;
  std::string description;  // "POST /v2/models/m/infer, 16 variants, 600 KiB"
};

/// Prepares all messages before the clock starts. With --model it asks the server for the model's metadata.
/// Throws invalid_argument for options that do not fit together or a shape that is left open.
Payload make_payload(const LoadOptions& options);

/// One input of a KServe v2 request, with its bytes as the binary extension wants them.
struct InputTensor {
  std::string name;
  std::string datatype;  // "FP32", "INT64", "BYTES", ...
  std::vector<int64_t> shape;
  std::string bytes;  // little-endian rows; BYTES: 4-byte length and text for each element
};

/// Body of an infer request. Binary: JSON then blobs, `json_bytes` gets the length of the JSON part; JSON:
/// numbers in `data`. Throws unsupported for FP16 or BF16 in JSON.
std::string encode_infer(const std::vector<InputTensor>& inputs, Format format, size_t* json_bytes);

/// Body of a generate request: each input's name with its value, or the list of its values.
std::string encode_generate(const std::vector<InputTensor>& inputs);

/// Bytes of random elements: integers from low to high inclusive, floats uniform between them, BYTES short
/// words. Throws unsupported for an unknown datatype.
std::string random_elements(std::string_view datatype, int64_t count, double low, double high, uint64_t seed);

}  // namespace trireme::load
