# kaitian_add_part(<name> SOURCES <files> [DEPENDS <parts>])
# One static library per part of the architecture, as kaitian::<name>. Its public headers are
# include/kaitian/<name>/, its private ones lie beside the sources.
function(kaitian_compile_options target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wshadow -Wconversion
                                           -Wno-sign-conversion -Wnon-virtual-dtor -Woverloaded-virtual)
  # A reduction is the same on every rank and for every chunking only if no compiler fuses a*b+c.
  target_compile_options(${target} PRIVATE -ffp-contract=off)
  if(KAITIAN_WERROR)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
  if(KAITIAN_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${KAITIAN_SANITIZE} -fno-omit-frame-pointer
                                             -fno-sanitize-recover=all)
    target_link_options(${target} PRIVATE -fsanitize=${KAITIAN_SANITIZE})
  endif()
endfunction()

function(kaitian_add_part name)
  cmake_parse_arguments(arg "" "" "SOURCES;DEPENDS" ${ARGN})
  set(target kaitian_${name})
  add_library(${target} STATIC ${arg_SOURCES})
  add_library(kaitian::${name} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name})
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_include_directories(
    ${target}
    PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>
    PRIVATE ${PROJECT_SOURCE_DIR}/src)
  kaitian_compile_options(${target})
  foreach(part IN LISTS arg_DEPENDS)
    target_link_libraries(${target} PUBLIC kaitian::${part})
  endforeach()
  set_property(GLOBAL APPEND PROPERTY kaitian_parts ${target})
endfunction()

# kaitian_add_test(<name> SOURCES <files> PARTS <parts> [LABELS <labels>] [TIMEOUT <seconds>])
function(kaitian_add_test name)
  cmake_parse_arguments(arg "" "TIMEOUT" "SOURCES;PARTS;LABELS" ${ARGN})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  add_executable(${name} ${arg_SOURCES})
  kaitian_compile_options(${name})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/tests/cpp)
  foreach(part IN LISTS arg_PARTS)
    target_link_libraries(${name} PRIVATE kaitian::${part})
  endforeach()
  target_link_libraries(${name} PRIVATE GTest::gtest_main GTest::gmock)
  # Names of their own: two programs of one source would else give each other their labels.
  gtest_discover_tests(${name} TEST_PREFIX "${name}." DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT ${arg_TIMEOUT} LABELS "${arg_LABELS}")
endfunction()
