# What `cmake --install` lays down: libraries, headers, the CMake package, the pkg-config file and the manual. All of it
# finds its files relative to itself, so an installed tree may be moved, but for folders that were given absolutely.
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/hakmem)

install(TARGETS hakmem_shared hakmem_static EXPORT hakmem
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS hakmem_secure LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES ${PROJECT_BINARY_DIR}/hakmem.o DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY include/hakmem DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp")

install(EXPORT hakmem FILE hakmemTargets.cmake NAMESPACE hakmem:: DESTINATION ${package_dir})
configure_package_config_file(cmake/hakmemConfig.cmake.in ${PROJECT_BINARY_DIR}/package/hakmemConfig.cmake
    INSTALL_DESTINATION ${package_dir} PATH_VARS CMAKE_INSTALL_LIBDIR CMAKE_INSTALL_INCLUDEDIR
    NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/package/hakmemConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/package/hakmemConfig.cmake ${PROJECT_BINARY_DIR}/package/hakmemConfigVersion.cmake
    DESTINATION ${package_dir})

set(pc_prefix ${CMAKE_INSTALL_PREFIX})
if(NOT IS_ABSOLUTE ${CMAKE_INSTALL_LIBDIR})
    file(RELATIVE_PATH pc_prefix /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
    string(REGEX REPLACE "/$" "" pc_prefix "\${pcfiledir}/${pc_prefix}")
endif()
foreach(folder LIBDIR INCLUDEDIR)
    set(pc_${folder} ${CMAKE_INSTALL_${folder}})
    if(NOT IS_ABSOLUTE ${pc_${folder}})
        string(PREPEND pc_${folder} "\${prefix}/")
    endif()
endforeach()
configure_file(cmake/hakmem.pc.in ${PROJECT_BINARY_DIR}/package/hakmem.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/package/hakmem.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

install(DIRECTORY docs/man/ DESTINATION ${CMAKE_INSTALL_MANDIR})
