// Buckets of object stores, through Arrow's file systems.
#pragma once

#include <memory>
#include <string>

#include "data/store/store.h"

namespace arrow::io {
class OutputStream;
}  // namespace arrow::io

namespace trireme::data {

/// A URL of an object store in its parts: "s3://bucket/key?region=eu-west-1".
struct ObjectUrl {
  std::string scheme;  ///< "s3", "gs"
  std::string key;     ///< with the bucket in front: "bucket/key"
  std::string query;   ///< "region=eu-west-1"; empty: none

  /// The URL of another key with the same options.
  std::string with_key(std::string_view other) const;
};

/// A `?` begins the query only where an option of ours and `=` follow it: elsewhere it is a wildcard. Throws
/// invalid_argument for a URL without a bucket.
ObjectUrl parse_object_url(const std::string& url);

/// One store for URLs of the same scheme and options, as long as one of them is used. Throws unsupported in
/// builds without Arrow, invalid_argument for options that are not understood.
std::shared_ptr<const Store> object_store_of(const ObjectUrl& url);

/// An upload to `url` through a stream of the URL's store. What is not committed never appears. Only builds
/// with Arrow have it.
std::unique_ptr<StoreWriter> make_object_writer(std::shared_ptr<arrow::io::OutputStream> stream,
                                                const std::string& url);

}  // namespace trireme::data
