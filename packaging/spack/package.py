"""hakmem for Spack."""

from spack.package import *


class Hakmem(CMakePackage):
    """A general-purpose malloc for Linux whose free memory is bits."""

    homepage = "@HOMEPAGE@"
    url = "@SOURCE@"

    license("MIT")

    version("@VERSION@", sha256="@SHA256@")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.25:", type="build")

    requires("platform=linux")
    conflicts("%gcc@:10", msg="hakmem needs gcc 11 or clang 14, or newer")

    def cmake_args(self):
        return [self.define("HAK_TESTS", False)]
