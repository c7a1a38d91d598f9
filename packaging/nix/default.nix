# hakmem for Nix: callPackage ./default.nix { }
{ lib, stdenv, fetchurl, cmake, ninja }:

stdenv.mkDerivation rec {
  pname = "hakmem";
  version = "@VERSION@";

  src = fetchurl {
    url = "@SOURCE@";
    sha256 = "@SHA256@";
  };

  nativeBuildInputs = [ cmake ninja ];
  cmakeFlags = [ "-DHAK_TESTS=OFF" ];
  hardeningDisable = [ "fortify" "stackprotector" ]; # the code that the tests ran

  meta = {
    description = "General-purpose malloc whose free memory is bits";
    homepage = "@HOMEPAGE@";
    license = lib.licenses.mit;
    platforms = [ "x86_64-linux" "aarch64-linux" ];
  };
}
