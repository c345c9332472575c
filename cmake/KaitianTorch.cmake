# Target kaitian_torch: the torch of the Python that was found, by path. find_package(Torch) would add foreign RPATHs and
# ask for a CUDA toolkit on CUDA builds, although only device-neutral c10 is used.
find_package(Python REQUIRED COMPONENTS Interpreter Development.Module)
execute_process(
  COMMAND ${CMAKE_COMMAND} -E env TORCH_DEVICE_BACKEND_AUTOLOAD=0 ${Python_EXECUTABLE} -c
          "import os, torch; print(os.path.dirname(torch.__file__), int(torch.compiled_with_cxx11_abi()), torch.__version__, sep=';', end='')"
  OUTPUT_VARIABLE torch_info
  RESULT_VARIABLE torch_missing
  ERROR_VARIABLE torch_error)
if(torch_missing)
  message(FATAL_ERROR "kaitian is built against the torch that is installed, and ${Python_EXECUTABLE} has none. Install "
                      "torch first and build with: pip install --no-build-isolation .\n${torch_error}")
endif()
list(GET torch_info 0 torch_dir)
list(GET torch_info 1 torch_abi)
list(GET torch_info 2 torch_version)
if(torch_version VERSION_LESS 2.11)
  message(FATAL_ERROR "kaitian needs torch >= 2.11, found ${torch_version}")
endif()
message(STATUS "torch ${torch_version} in ${torch_dir}")
add_library(kaitian_torch INTERFACE)
target_include_directories(kaitian_torch SYSTEM INTERFACE ${torch_dir}/include ${torch_dir}/include/torch/csrc/api/include)
target_compile_definitions(kaitian_torch INTERFACE _GLIBCXX_USE_CXX11_ABI=${torch_abi})
foreach(library c10 torch_cpu torch_python)
  add_library(kaitian_torch_${library} SHARED IMPORTED)
  set_target_properties(kaitian_torch_${library} PROPERTIES IMPORTED_LOCATION ${torch_dir}/lib/lib${library}.so)
  target_link_libraries(kaitian_torch INTERFACE kaitian_torch_${library})
endforeach()
