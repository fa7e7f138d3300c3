// Where the files of a job's state lie, and what its parts are called.
#pragma once

#include <cstdint>
#include <string>

namespace trireme::batch {

struct JobDirectory {
  std::string state;   ///< of this machine or mounted: manifest, journal, workers
  std::string output;  ///< parts and errors; may be a bucket
  std::string ending;  ///< of the parts' names: ".parquet"
  int64_t chunks = 0;
  std::string query = {};  ///< of a bucket's URL, with its '?': stands behind every name of the output

  std::string manifest() const { return state + "/manifest"; }
  std::string journal() const { return state + "/journal"; }
  std::string setup_lock() const { return state + "/setup.lock"; }
  std::string workers() const { return state + "/workers"; }
  std::string report() const { return state + "/report.md"; }
  /// On the same file system as the output, where that is local.
  std::string temporary() const { return output + "/_job/tmp"; }
  /// What the store of the output calls a name in it; empty: the output itself.
  std::string at(const std::string& name) const;
  std::string errors() const { return at("errors"); }
  std::string part(int64_t chunk) const { return at(part_name(chunk) + ending); }
  std::string error_part(int64_t chunk) const { return at("errors/" + part_name(chunk) + ".jsonl"); }
  /// "part-00042": of so many digits that names sort as chunks do.
  std::string part_name(int64_t chunk) const;
  /// The last part of a path of the store, without the query.
  std::string name_of(const std::string& path) const;
  /// The chunk of a name that part_name() and `behind` give; -1 for others.
  int64_t chunk_of(const std::string& name, const std::string& behind) const;
};

}  // namespace trireme::batch
