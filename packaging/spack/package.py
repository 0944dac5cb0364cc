# The recipe for Spack (https://spack.readthedocs.io): copy this folder as `packages/trellis` of a repository.
from spack.package import *


class Trellis(Package):
    """One memory across machines: a region at the same address in every process of a cluster."""

    homepage = "https://github.com/trellis-memory/trellis"
    git = "https://github.com/trellis-memory/trellis.git"

    license("MIT OR Apache-2.0")

    version("main", branch="main")

    variant("fabric", default=False, description="The link over libfabric")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("rust@1.95:", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("libfabric@1.17:", when="+fabric")

    conflicts("target=aarch64:", msg="the code for faults and calls is for x86-64")
    conflicts("platform=darwin", msg="Trellis uses userfaultfd and signals of Linux")

    def install(self, spec, prefix):
        cargo = which("cargo", required=True)
        arguments = ["xtask", "install", "--prefix", prefix]
        if spec.satisfies("+fabric"):
            arguments += ["--features", "fabric"]
        cargo(*arguments)
