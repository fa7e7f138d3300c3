# Turns src/ into targets by file suffix, so that adding a file is adding a file:
#   x.cc        -> library trireme_core          x_test.cc  -> test_<folder>, one GoogleTest binary a folder
#   x_bench.cc  -> bench_x (Google Benchmark)    x_fuzz.cc  -> fuzz_x (libFuzzer, preset fuzz only)
#   src/backend/cuda/*.cu -> trireme_core: by nvcc with preset cuda, else as C++ (trireme_cuda_folder)
#   src/cli/*.cc -> trireme                      tests/x_test.cc -> test_journeys
#   examples/x.cc -> examples/x (a program; target `examples` builds all)
set(TRIREME_FOLDERS base tensor data ir backend/cpu backend/cuda comm ops passes model compile lower plan runtime engine
    diag train sched http serve batch load tune)

# Flags and libraries that every file of ours gets; third-party headers are system headers, so our warnings stay ours.
set(TRIREME_CXX_FLAGS -Wall -Wextra -Wshadow -Wno-missing-field-initializers -fno-math-errno -ffp-contract=off)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND TRIREME_CXX_FLAGS -Wno-restrict)  # GCC 12 reports std::string's own operator+
else()
  list(APPEND TRIREME_CXX_FLAGS -Wno-unknown-warning-option -Wno-unknown-pragmas)
endif()
add_library(trireme_flags INTERFACE)
target_compile_options(trireme_flags INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${TRIREME_CXX_FLAGS}>")
if(TRIREME_WERROR)
  target_compile_options(trireme_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()
target_include_directories(trireme_flags INTERFACE ${CMAKE_SOURCE_DIR}/src)
target_include_directories(trireme_flags SYSTEM INTERFACE ${RAPIDJSON_INCLUDE} ${PROTOZERO_INCLUDE}
                           ${UTF8PROC_INCLUDE} ${HIGHWAY_INCLUDE} ${YAML_CPP_INCLUDE} ${Boost_INCLUDE_DIRS}
                           ${NGHTTP2_INCLUDE} ${PCRE2_INCLUDE})
target_link_libraries(trireme_flags INTERFACE Threads::Threads ${UTF8PROC_LIBRARY} ${HIGHWAY_LIBRARY}
                      OpenSSL::SSL OpenSSL::Crypto ZLIB::ZLIB JPEG::JPEG PNG::PNG
                      ${YAML_CPP_LIBRARY} ${NGHTTP2_LIBRARY} ${PCRE2_LIBRARY})

# trireme_precompile(TARGET HEADER...): the headers, half of a small file's time, are parsed once for the target.
# Not for optimised code by GCC: it takes precompiled standard headers for ours and warns of what it inlines from them.
function(trireme_precompile target)
  if(TRIREME_PRECOMPILE AND (target STREQUAL "trireme_test_support" OR CMAKE_CXX_COMPILER_ID MATCHES "Clang"))
    target_precompile_headers(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${ARGN}>")
  endif()
endfunction()

# trireme_unity(TARGET FILE...): the files of a folder are compiled in groups of about eight as one translation unit, so
# headers and the templates that they share are compiled once a group (docs/decisions/0097-files-compiled-together.md).
# By themselves stay kernels of GPUs and of an instruction set, and files with options of their own, as CMake sees to.
function(trireme_unity target)
  if(NOT TRIREME_UNITY)
    return()
  endif()
  set(folders "")
  foreach(file ${ARGN})
    file(STRINGS ${file} kernels REGEX "foreach_target\\.h|TRIREME_TARGET_" LIMIT_COUNT 1)
    if(file MATCHES "\\.cc$" AND NOT kernels)
      get_filename_component(folder ${file} DIRECTORY)
      list(APPEND folders ${folder})
      list(APPEND files_${folder} ${file})
    endif()
  endforeach()
  list(REMOVE_DUPLICATES folders)
  foreach(folder ${folders})
    file(RELATIVE_PATH name ${CMAKE_SOURCE_DIR} ${folder})
    string(MAKE_C_IDENTIFIER ${name} name)
    list(LENGTH files_${folder} count)
    math(EXPR groups "(${count} + 7) / 8")
    math(EXPR size "(${count} + ${groups} - 1) / ${groups}")
    set(place 0)
    foreach(file ${files_${folder}})
      math(EXPR group "${place} / ${size}")
      set_property(SOURCE ${file} PROPERTY UNITY_GROUP ${name}_${group})
      math(EXPR place "${place} + 1")
    endforeach()
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
endfunction()

# Arrow's headers, libraries and macro for the files that use them and their stand-ins, which their names tell.
# --as-needed: programs that open no data sets do not load 60 MB of libraries.
function(trireme_arrow)
  set(data ${CMAKE_SOURCE_DIR}/src/data)
  file(GLOB users CONFIGURE_DEPENDS ${data}/rows/arrow/*.cc ${data}/readers/arrow_*.cc ${data}/readers/parquet*.cc
       ${data}/store/object_store*.cc)
  set_property(SOURCE ${users} APPEND PROPERTY COMPILE_DEFINITIONS TRIREME_ARROW=1)
  list(FILTER users EXCLUDE REGEX "_none\\.cc$")
  set_property(SOURCE ${users} APPEND PROPERTY COMPILE_OPTIONS -isystem ${ARROW_INCLUDE})
  target_link_libraries(trireme_flags INTERFACE -Wl,--push-state,--as-needed ${ARROW_LIBRARY} ${PARQUET_LIBRARY}
                        ${ARROW_S3_LIBRARY} -Wl,--pop-state)
endfunction()

# MPI's headers and macro for the one file that uses them and its stand-in.
function(trireme_mpi)
  set_property(SOURCE ${CMAKE_SOURCE_DIR}/src/comm/mpi_link.cc ${CMAKE_SOURCE_DIR}/src/comm/mpi_none.cc
               APPEND PROPERTY COMPILE_DEFINITIONS TRIREME_MPI=1)
  # Without MPI's C++ classes, which MPI itself has given up.
  set_property(SOURCE ${CMAKE_SOURCE_DIR}/src/comm/mpi_link.cc APPEND PROPERTY COMPILE_DEFINITIONS
               OMPI_SKIP_MPICXX=1 MPICH_SKIP_MPICXX=1)
  foreach(directory ${MPI_CXX_INCLUDE_DIRS})
    set_property(SOURCE ${CMAKE_SOURCE_DIR}/src/comm/mpi_link.cc APPEND PROPERTY COMPILE_OPTIONS -isystem ${directory})
  endforeach()
  set(libraries ${MPI_CXX_LIBRARIES})
  list(FILTER libraries EXCLUDE REGEX "mpi_cxx")
  target_link_libraries(trireme_flags INTERFACE -Wl,--push-state,--as-needed ${libraries} -Wl,--pop-state)
endfunction()

# Messages of src/serve/proto by protoc, in a library of their own so that our warnings stay ours.
function(trireme_proto)
  set(out ${CMAKE_BINARY_DIR}/proto)
  set(generated "")
  file(GLOB protos CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/serve/proto/*.proto)
  foreach(proto ${protos})
    get_filename_component(name ${proto} NAME_WE)
    set(file ${out}/serve/proto/${name}.pb.cc)
    add_custom_command(
      OUTPUT ${file} ${out}/serve/proto/${name}.pb.h
      COMMAND ${CMAKE_COMMAND} -E make_directory ${out}
      COMMAND protobuf::protoc -I ${CMAKE_SOURCE_DIR}/src --cpp_out=${out} ${proto}
      DEPENDS ${protos} VERBATIM)
    list(APPEND generated ${file})
  endforeach()
  add_library(trireme_proto STATIC ${generated})
  target_include_directories(trireme_proto SYSTEM PRIVATE ${out})
  target_link_libraries(trireme_proto PUBLIC protobuf::libprotobuf)
  # Only for linking: all other files compile as without protobuf.
  target_link_libraries(trireme_core PUBLIC $<LINK_ONLY:trireme_proto>)
  add_dependencies(trireme_core trireme_proto)
  file(GLOB files CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/serve/grpc/*.cc)
  set_property(SOURCE ${files} APPEND PROPERTY COMPILE_OPTIONS -isystem ${out})
endfunction()

# NCCL's and CUDA's headers for the one file that uses them, and the macro for it and its stand-in.
function(trireme_nccl)
  set_property(SOURCE ${CMAKE_SOURCE_DIR}/src/comm/nccl.cc ${CMAKE_SOURCE_DIR}/src/comm/nccl_none.cc
               APPEND PROPERTY COMPILE_DEFINITIONS TRIREME_NCCL=1)
  foreach(directory ${NCCL_INCLUDE} ${CUDAToolkit_INCLUDE_DIRS})
    set_property(SOURCE ${CMAKE_SOURCE_DIR}/src/comm/nccl.cc APPEND PROPERTY COMPILE_OPTIONS -isystem ${directory})
  endforeach()
  target_link_libraries(trireme_flags INTERFACE ${CMAKE_DL_LIBS})
endfunction()

# Tests are compiled once and run once: optimising them takes longer than they run.
function(trireme_test_options target)
  if(CMAKE_BUILD_TYPE STREQUAL "Release")
    target_compile_options(${target} PRIVATE -O1)
  endif()
endfunction()

# Tests may also include from tests/ and ask it where the checkout, shared data and encoder are.
function(trireme_test_support)
  add_library(trireme_test_support STATIC tests/attack.cc tests/cut_trial.cc tests/op_cases.cc tests/partition_trial.cc
              tests/row_trial.cc tests/test_data.cc tests/http2_peer.cc)
  target_link_libraries(trireme_test_support PUBLIC trireme_core GTest::gtest_main)
  target_include_directories(trireme_test_support PUBLIC ${CMAKE_SOURCE_DIR})
  set_property(SOURCE tests/test_data.cc APPEND PROPERTY COMPILE_DEFINITIONS TRIREME_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  trireme_test_options(trireme_test_support)
  trireme_precompile(trireme_test_support ${CMAKE_SOURCE_DIR}/cmake/precompiled.h <gtest/gtest.h>)
endfunction()

# Splits the *.cc of a folder into <prefix>_sources, _tests, _benches and _fuzzers.
function(trireme_split folder prefix)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${folder}/*.cc)
  foreach(kind test bench fuzz)
    set(found ${sources})
    list(FILTER found INCLUDE REGEX "_${kind}\\.cc$")
    list(FILTER sources EXCLUDE REGEX "_${kind}\\.cc$")
    set(${prefix}_${kind} ${found} PARENT_SCOPE)
  endforeach()
  set(${prefix}_sources ${sources} PARENT_SCOPE)
endfunction()

function(trireme_test_binary name)
  if(NOT ARGN)
    return()
  endif()
  add_executable(test_${name} ${ARGN})
  trireme_unity(test_${name} ${ARGN})
  target_link_libraries(test_${name} PRIVATE trireme_test_support)
  trireme_test_options(test_${name})
  if(TRIREME_PRECOMPILE)
    target_precompile_headers(test_${name} REUSE_FROM trireme_test_support)
  endif()
  add_test(NAME ${name} COMMAND test_${name})
endfunction()

# One Google Benchmark binary a file, outside `all`: `./dev bench` builds what it runs, `ninja benches` all.
function(trireme_benches)
  foreach(file ${ARGN})
    get_filename_component(name ${file} NAME_WE)
    string(REGEX REPLACE "_bench$" "" name ${name})
    if(name STREQUAL "gemm" AND NOT dnnl_FOUND)
      continue()
    endif()
    add_executable(bench_${name} EXCLUDE_FROM_ALL ${file})
    target_link_libraries(bench_${name} PRIVATE trireme_core benchmark::benchmark_main)
    target_include_directories(bench_${name} PRIVATE ${CMAKE_SOURCE_DIR})
    if(name STREQUAL "gemm")
      target_link_libraries(bench_gemm PRIVATE DNNL::dnnl)
    endif()
    add_dependencies(benches bench_${name})
    if(name STREQUAL "train")  # tests/gpu_check.py runs it
      set_target_properties(bench_train PROPERTIES EXCLUDE_FROM_ALL FALSE)
    endif()
  endforeach()
endfunction()

function(trireme_fuzzers)
  add_custom_target(fuzzers)
  foreach(file ${ARGN})
    get_filename_component(name ${file} NAME_WE)
    string(REGEX REPLACE "_fuzz$" "" name ${name})
    add_executable(fuzz_${name} EXCLUDE_FROM_ALL ${file})
    target_link_libraries(fuzz_${name} PRIVATE trireme_core)
    target_include_directories(fuzz_${name} PRIVATE ${CMAKE_SOURCE_DIR})
    target_link_options(fuzz_${name} PRIVATE -fsanitize=fuzzer)
    add_dependencies(fuzzers fuzz_${name})
  endforeach()
endfunction()

# One program a file, in <build>/examples; tests/examples.py runs them.
function(trireme_examples)
  file(GLOB files CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/examples/*.cc)
  add_custom_target(examples ALL)
  foreach(file ${files})
    get_filename_component(name ${file} NAME_WE)
    add_executable(example_${name} ${file})
    target_link_libraries(example_${name} PRIVATE trireme_core)
    set_target_properties(example_${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/examples
                          OUTPUT_NAME ${name})
    add_dependencies(examples example_${name})
  endforeach()
endfunction()

# The headers of elementwise functions as strings, for the GPU's run-time compiler: one functor for host and device.
function(trireme_function_texts result)
  set(text "// The headers of src/tensor that generated kernels include. Made by cmake/folders.cmake.\n")
  string(APPEND text "namespace trireme::cuda {\n")
  foreach(pair ElementMath:element_math.h BinaryMath:binary_math.h DerivativeMath:derivative_math.h
          ElementwiseRows:elementwise_rows.inc)
    string(REGEX MATCH "^(.*):(.*)$" pair ${pair})
    set(name ${CMAKE_MATCH_1})
    set(header ${CMAKE_SOURCE_DIR}/src/tensor/${CMAKE_MATCH_2})
    set_property(DIRECTORY ${CMAKE_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${header})
    file(READ ${header} body)
    string(APPEND text "extern const char* const k${name}Text;\n"
           "const char* const k${name}Text = R\"~~~(${body})~~~\";\n")
  endforeach()
  set(made ${CMAKE_BINARY_DIR}/function_texts.cc)
  file(CONFIGURE OUTPUT ${made} CONTENT "${text}}  // namespace trireme::cuda\n" @ONLY)
  set(${result} ${made} PARENT_SCOPE)
endfunction()

# Kernels that run on the host say where an access is not aligned, as a GPU would (device/host_alignment.h): those that
# tests of the folder compile themselves, and in debug builds all, which doubles the program's size. Under a sanitizer
# its own library does.
function(trireme_check_alignment)
  if(NOT TRIREME_SANITIZE)
    set_property(SOURCE ${ARGN} ${CMAKE_SOURCE_DIR}/src/backend/cuda/device/host_alignment.cc
                 APPEND PROPERTY COMPILE_DEFINITIONS TRIREME_CHECKS_ALIGNMENT=1)
    set_property(SOURCE ${ARGN} APPEND PROPERTY COMPILE_OPTIONS -fsanitize=alignment -fsanitize-recover=alignment)
  endif()
endfunction()

# Sources of src/backend/cuda. Files named toolkit_* need the CUDA toolkit, those named emulated_* stand in for it:
# without it the .cu files are C++ and run on the host.
function(trireme_cuda_folder result)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/backend/cuda/*.cc)
  file(GLOB_RECURSE kernels CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/backend/cuda/*.cu)
  list(FILTER sources EXCLUDE REGEX "_(test|bench|fuzz)\\.cc$")
  if(TRIREME_CUDNN)
    list(FILTER sources EXCLUDE REGEX "/cudnn_none")
    file(GLOB graphs ${CMAKE_SOURCE_DIR}/src/backend/cuda/*/toolkit_cudnn*.cc)
    set_property(SOURCE ${graphs} APPEND PROPERTY COMPILE_DEFINITIONS NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
                 NV_CUDNN_FRONTEND_DISABLE_LOGGING)
    # Calls into the library: at -O3 the front end's headers take minutes a file.
    set_property(SOURCE ${graphs} APPEND PROPERTY COMPILE_OPTIONS -O1)
    foreach(directory ${CUDNN_FRONTEND_INCLUDE} ${CUDNN_INCLUDE})
      set_property(SOURCE ${graphs} APPEND PROPERTY COMPILE_OPTIONS -isystem ${directory})
    endforeach()
  else()
    list(FILTER sources EXCLUDE REGEX "/toolkit_cudnn")
  endif()
  trireme_function_texts(texts)
  list(APPEND sources ${texts})
  if(TRIREME_CUDA)
    list(FILTER sources EXCLUDE REGEX "/emulated_")
    set_property(SOURCE ${CMAKE_SOURCE_DIR}/src/backend/cuda/elementwise/toolkit_elements.cc
                 APPEND PROPERTY COMPILE_DEFINITIONS TRIREME_TOOLKIT_LIBRARIES="${CUDAToolkit_LIBRARY_DIR}")
    list(LENGTH kernels count)
    message(STATUS "CUDA ${CMAKE_CUDA_COMPILER_VERSION}: ${count} files of kernels for sm_${CMAKE_CUDA_ARCHITECTURES}")
    set_property(SOURCE ${sources} ${kernels} APPEND PROPERTY INCLUDE_DIRECTORIES ${CUDAToolkit_INCLUDE_DIRS})
    # A kernel that spills its registers does not compile.
    set_property(SOURCE ${kernels} APPEND PROPERTY COMPILE_OPTIONS -Xptxas=--warn-on-spills,--warning-as-error)
  else()
    list(FILTER sources EXCLUDE REGEX "/toolkit_")
    set_source_files_properties(${kernels} PROPERTIES LANGUAGE CXX)
    if(CMAKE_BUILD_TYPE STREQUAL "Debug")
      trireme_check_alignment(${kernels})
    endif()
  endif()
  set(${result} ${sources} ${kernels} PARENT_SCOPE)
endfunction()

function(trireme_folders)
  add_library(trireme_core ${TRIREME_LIBRARY})
  target_link_libraries(trireme_core PUBLIC trireme_flags)
  trireme_precompile(trireme_core ${CMAKE_SOURCE_DIR}/cmake/precompiled.h)
  add_custom_target(benches)
  trireme_test_support()
  set(sources "")
  set(benches "")
  set(fuzzers "")
  foreach(folder ${TRIREME_FOLDERS})
    trireme_split(src/${folder} found)
    if(folder STREQUAL "backend/cuda")
      trireme_cuda_folder(found_sources)
      trireme_check_alignment(${found_test})
      if(TRIREME_CUDA)
        list(FILTER found_test EXCLUDE REGEX "/emulated_")
      endif()
    endif()
    target_sources(trireme_core PRIVATE ${found_sources})
    list(APPEND sources ${found_sources})
    list(APPEND benches ${found_bench})
    list(APPEND fuzzers ${found_fuzz})
    string(REPLACE "/" "_" name ${folder})
    trireme_test_binary(${name} ${found_test})
  endforeach()
  trireme_unity(trireme_core ${sources})
  if(TRIREME_ARROW)
    trireme_arrow()
  endif()
  if(TRIREME_MPI)
    trireme_mpi()
  endif()
  trireme_proto()
  if(TRIREME_NCCL)
    trireme_nccl()
  endif()
  if(TRIREME_CUDA)
    target_link_libraries(trireme_flags INTERFACE $<LINK_ONLY:CUDA::cudart_static>)
  endif()
  if(TRIREME_FUZZ)
    trireme_fuzzers(${fuzzers})
  endif()
  trireme_split(tests journeys)
  trireme_test_binary(journeys ${journeys_test})
  # Runs a tree of ONNX backend cases; tools/onnx_report.py drives it and writes docs/onnx.md.
  add_executable(onnx_conformance tests/onnx_conformance.cc tests/onnx_case.cc)
  target_link_libraries(onnx_conformance PRIVATE trireme_core)
  target_include_directories(onnx_conformance PRIVATE ${CMAKE_SOURCE_DIR})
  trireme_split(bench peers)
  trireme_benches(${benches} ${peers_bench})
  trireme_split(src/cli cli)
  if(cli_sources)
    add_executable(trireme ${cli_sources})
    trireme_unity(trireme ${cli_sources})
    target_link_libraries(trireme PRIVATE trireme_core)
  endif()
  trireme_test_binary(cli ${cli_test})
  trireme_examples()
endfunction()
