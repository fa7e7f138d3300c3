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
find_path(PCRE2_INCLUDE pcre2.h REQUIRED)
find_library(PCRE2_LIBRARY pcre2-8 REQUIRED)
find_path(HIGHWAY_INCLUDE hwy/highway.h REQUIRED)  # headers only: backend/cpu/simd/highway_dispatch.cc

find_package(GTest REQUIRED)
find_package(benchmark REQUIRED)
find_package(dnnl QUIET)  # oneDNN: the peer of bench_gemm, which is left out without it

# The gRPC listener of `trireme serve`: frames and header compression, and the small messages of its calls.
find_path(NGHTTP2_INCLUDE nghttp2/nghttp2.h REQUIRED)
find_library(NGHTTP2_LIBRARY nghttp2 REQUIRED)
find_package(Protobuf REQUIRED)

# Arrow C++ reads and writes Parquet and Arrow files, and reaches object stores; Debian 12 has none, so `./dev setup`
# takes PyPI's pyarrow, whose wheel carries headers and libraries. TRIREME_ARROW_ROOT names a directory with include/
# and libarrow.so*, libparquet.so* in it or in lib/. Without it the program is built all the same and refuses these by
# name. Left out of sanitizer builds: its code is not instrumented.
set(TRIREME_ARROW OFF)
if(NOT TRIREME_SANITIZE)
  file(GLOB TRIREME_PYARROW CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/pyarrow)
  set(TRIREME_ARROW_ROOT "" CACHE PATH "prefix of Arrow C++; empty: .venv's pyarrow, then the system's")
  find_path(ARROW_INCLUDE arrow/api.h HINTS ${TRIREME_ARROW_ROOT}/include ${TRIREME_PYARROW}/include)
  # A wheel has versioned names only: libarrow.so.2600.
  file(GLOB arrow_libraries ${TRIREME_ARROW_ROOT}/lib/libarrow.so ${TRIREME_ARROW_ROOT}/libarrow.so*
       ${ARROW_INCLUDE}/../libarrow.so.* ${ARROW_INCLUDE}/../lib/libarrow.so /usr/lib/*/libarrow.so)
  file(GLOB parquet_libraries ${TRIREME_ARROW_ROOT}/lib/libparquet.so ${TRIREME_ARROW_ROOT}/libparquet.so*
       ${ARROW_INCLUDE}/../libparquet.so.* ${ARROW_INCLUDE}/../lib/libparquet.so /usr/lib/*/libparquet.so)
  # Newer releases have their file system of S3 in a library of its own.
  file(GLOB arrow_s3_libraries ${TRIREME_ARROW_ROOT}/lib/libarrow_s3.so ${TRIREME_ARROW_ROOT}/libarrow_s3.so*
       ${ARROW_INCLUDE}/../libarrow_s3.so.* ${ARROW_INCLUDE}/../lib/libarrow_s3.so /usr/lib/*/libarrow_s3.so)
  if(ARROW_INCLUDE AND arrow_libraries AND parquet_libraries)
    list(GET arrow_libraries 0 ARROW_LIBRARY)
    set(ARROW_S3_LIBRARY "")
    if(arrow_s3_libraries)
      list(GET arrow_s3_libraries 0 ARROW_S3_LIBRARY)
    endif()
    list(GET parquet_libraries 0 PARQUET_LIBRARY)
    set(TRIREME_ARROW ON)
  else()
    message(STATUS "no Arrow C++: Parquet files and object stores will be refused")
  endif()
endif()

# MPI: ranks as processes, under mpirun or srun. Without it the program is built all the same and says so when asked
# for such ranks. Left out of sanitizer builds: its code is not instrumented, and keeps memory to its end.
set(TRIREME_MPI OFF)
if(NOT TRIREME_SANITIZE)
  find_package(MPI QUIET COMPONENTS CXX)
  if(MPI_CXX_FOUND)
    set(TRIREME_MPI ON)
  else()
    message(STATUS "no MPI: ranks are threads of one process only")
  endif()
endif()

# NCCL's header: its library is loaded at run time, where there are GPUs. The wheel nvidia-nccl-cu13 of
# tools/requirements-cuda.txt has it.
set(TRIREME_NCCL OFF)
if(TRIREME_CUDA)
  file(GLOB TRIREME_PYNCCL ${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/nvidia/nccl/include)
  find_path(NCCL_INCLUDE nccl.h HINTS ${TRIREME_PYNCCL})
  if(NCCL_INCLUDE)
    set(TRIREME_NCCL ON)
  else()
    message(STATUS "no nccl.h: ranks with GPUs will be refused")
  endif()
endif()

# cuDNN's headers and its front end's (headers only, PyPI's nvidia-cudnn-frontend): the library is loaded at run time.
# Without them convolutions and attention run on kernels of ours.
set(TRIREME_CUDNN OFF)
if(TRIREME_CUDA)
  file(GLOB TRIREME_PYCUDNN ${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/nvidia/cudnn/include
       ${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/include)
  find_path(CUDNN_INCLUDE cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS} ${TRIREME_PYCUDNN})
  find_path(CUDNN_FRONTEND_INCLUDE cudnn_frontend.h HINTS ${CUDAToolkit_INCLUDE_DIRS} ${TRIREME_PYCUDNN})
  if(CUDNN_INCLUDE AND CUDNN_FRONTEND_INCLUDE)
    set(TRIREME_CUDNN ON)
  else()
    message(STATUS "no cuDNN with its front end: convolutions and attention run on kernels of ours")
  endif()
endif()
