# The CMake package: find_package(kaitian) gives kaitian::kaitian and one target per part.
include(CMakePackageConfigHelpers)
get_property(parts GLOBAL PROPERTY kaitian_parts)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/kaitian)
install(TARGETS ${parts} kaitian_all EXPORT kaitianTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT core)
install(DIRECTORY include/kaitian DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT core FILES_MATCHING PATTERN "*.h")
install(EXPORT kaitianTargets NAMESPACE kaitian:: DESTINATION ${package_dir} COMPONENT core)
file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/kaitianConfig.cmake
     "include(CMakeFindDependencyMacro)\nfind_dependency(Threads)\ninclude(\"\${CMAKE_CURRENT_LIST_DIR}/kaitianTargets.cmake\")\n")
write_basic_package_version_file(kaitianConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/kaitianConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/kaitianConfigVersion.cmake
        DESTINATION ${package_dir} COMPONENT core)
