# hakmem for Homebrew on Linux.
class Hakmem < Formula
  desc "General-purpose malloc whose free memory is bits"
  homepage "@HOMEPAGE@"
  url "@SOURCE@"
  version "@VERSION@"
  sha256 "@SHA256@"
  license "MIT"

  depends_on "cmake" => :build
  depends_on "ninja" => :build
  depends_on :linux

  def install
    system "cmake", "-S", ".", "-B", "build", "-G", "Ninja", "-DHAK_TESTS=OFF", *std_cmake_args
    system "cmake", "--build", "build"
    system "cmake", "--install", "build"
  end

  test do
    ENV["LD_PRELOAD"] = (lib/"libhakmem.so").to_s
    assert_match "libhakmem", shell_output("cat /proc/self/maps")
  end
end
