# Every library we take, found here and nowhere else. Another prefix serves through CMAKE_PREFIX_PATH or the cache
# variable named in the find call. docs/dependencies.md says what each is for.
find_package(Threads REQUIRED)
find_package(Boost 1.74 REQUIRED)      # Beast, headers only: parses HTTP
find_package(OpenSSL REQUIRED)
find_package(ZLIB REQUIRED)
find_package(JPEG REQUIRED)
find_package(PNG REQUIRED)
find_path(YAML_CPP_INCLUDE yaml-cpp/yaml.h REQUIRED)
find_library(YAML_CPP_LIBRARY yaml-cpp REQUIRED)

find_path(RAPIDJSON_INCLUDE rapidjson/reader.h REQUIRED)
find_path(PROTOZERO_INCLUDE protozero/pbf_reader.hpp REQUIRED)
find_path(UTF8PROC_INCLUDE utf8proc.h REQUIRED)
find_library(UTF8PROC_LIBRARY utf8proc REQUIRED)
find_path(HIGHWAY_INCLUDE hwy/highway.h REQUIRED)
find_library(HIGHWAY_LIBRARY hwy REQUIRED)

if(NOT TRIREME_FUZZ)
  find_package(GTest REQUIRED)
  find_package(benchmark REQUIRED)
  find_package(dnnl QUIET)  # oneDNN: the peer of bench_gemm, which is left out without it
endif()
