"""hakmem for Conan 2."""

import os

from conan import ConanFile
from conan.errors import ConanInvalidConfiguration
from conan.tools.cmake import CMake, CMakeToolchain, cmake_layout
from conan.tools.files import copy, get, rmdir


class Hakmem(ConanFile):
    name = "hakmem"
    version = "@VERSION@"
    package_type = "shared-library"
    license = "MIT"
    homepage = "@HOMEPAGE@"
    description = "General-purpose malloc whose free memory is bits"
    settings = "os", "arch", "compiler", "build_type"

    def validate(self):
        if self.settings.os != "Linux" or self.settings.arch not in ("x86_64", "armv8"):
            raise ConanInvalidConfiguration("hakmem is for Linux on x86-64 and aarch64")

    def layout(self):
        cmake_layout(self)

    def source(self):
        get(self, "@SOURCE@", sha256="@SHA256@", strip_root=True)

    def generate(self):
        tools = CMakeToolchain(self)
        tools.cache_variables["HAK_TESTS"] = False
        tools.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        copy(self, "LICENSE", self.source_folder, os.path.join(self.package_folder, "licenses"))
        CMake(self).install()
        for folder in ("cmake", "pkgconfig"):  # Conan makes these itself
            rmdir(self, os.path.join(self.package_folder, "lib", folder))

    def package_info(self):
        self.cpp_info.libs = ["hakmem"]
        self.cpp_info.set_property("cmake_file_name", "hakmem")
        self.cpp_info.set_property("cmake_target_name", "hakmem::shared")
        self.cpp_info.set_property("pkg_config_name", "hakmem")
