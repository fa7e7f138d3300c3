# Turns src/ into targets: all *.cc but tests and main into one static library, *_test.cc into one test binary a folder.
add_library(trireme_flags INTERFACE)
target_compile_options(trireme_flags INTERFACE -Wall -Wextra -Werror -Wshadow -Wno-missing-field-initializers
                       -fno-math-errno -ffp-contract=off)
target_include_directories(trireme_flags INTERFACE ${CMAKE_SOURCE_DIR}/src)
target_include_directories(trireme_flags SYSTEM INTERFACE ${RAPIDJSON_INCLUDE} ${PROTOZERO_INCLUDE}
                           ${UTF8PROC_INCLUDE} ${HIGHWAY_INCLUDE} ${Boost_INCLUDE_DIRS})
target_link_libraries(trireme_flags INTERFACE Threads::Threads ${UTF8PROC_LIBRARY} ${HIGHWAY_LIBRARY} DNNL::dnnl
                      OpenSSL::SSL OpenSSL::Crypto ZLIB::ZLIB JPEG::JPEG)

set(TRIREME_FOLDERS base tensor data ir backend/cpu comm ops passes model compile plan runtime engine diag train sched
    serve batch)

function(trireme_folders)
  add_library(trireme_core STATIC)
  target_link_libraries(trireme_core PUBLIC trireme_flags)
  foreach(folder ${TRIREME_FOLDERS})
    file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${folder}/*.cc)
    file(GLOB_RECURSE tests CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${folder}/*_test.cc)
    if(tests)
      list(REMOVE_ITEM sources ${tests})
    endif()
    target_sources(trireme_core PRIVATE ${sources})
    if(tests)
      string(REPLACE "/" "_" name ${folder})
      add_executable(test_${name} ${tests})
      target_link_libraries(test_${name} PRIVATE trireme_core GTest::gtest_main)
      add_test(NAME ${name} COMMAND test_${name})
    endif()
  endforeach()
  file(GLOB cli CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/cli/*.cc)
  if(cli)
    add_executable(trireme ${cli})
    target_link_libraries(trireme PRIVATE trireme_core)
  endif()
endfunction()
