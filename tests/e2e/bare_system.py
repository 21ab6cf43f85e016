"""A minimal Debian in a folder, without Python or a compiler, for installing and running a package."""

import hashlib
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

_PACKAGES = Path(__file__).resolve().parents[2] / "packaging" / "debian-packages"
_SUITE = "bookworm"
_MIRROR = "http://deb.debian.org/debian"
# Files of apt and dpkg themselves, and caches that other packages make of installed files.
_BOOKKEEPING = ("var/lib/dpkg/", "var/lib/apt/", "var/cache/", "var/log/", "etc/ld.so.cache", "tmp/")
# In its own mount namespace, so that nothing stays mounted; /tmp is the test's, with display, buses and home.
_ENTER = """
set -e
mount --bind /proc "$0/proc"; mount --rbind /dev "$0/dev"; mount --bind /tmp "$0/tmp"
exec chroot "$0" /usr/bin/env -u LD_LIBRARY_PATH PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root "$@"
"""


@cache
def why_not() -> str | None:
    if shutil.which("mmdebstrap") is None:
        return "mmdebstrap is not installed"
    if os.geteuid() != 0:
        return "making a root file system needs root"
    tried = subprocess.run(["unshare", "--mount", "mount", "--bind", "/proc", "/proc"], capture_output=True, text=True)
    return None if tried.returncode == 0 else f"private mounts are not allowed: {tried.stderr.strip()}"


def _dependencies() -> list[str]:
    """Return the dependencies of kvchat's package; downloaded once, so that apt needs no network."""
    lines = _PACKAGES.read_text("utf-8").splitlines()
    found = [line.partition(": ")[2].split() for line in lines if line.startswith(("qt:", "engine:"))]
    return sorted(name for names in found for name in names)


def _archive() -> Path:
    """Return the system as a tar file, with apt's lists and the dependencies in its cache; made once."""
    recipe = " ".join([_SUITE, _MIRROR, *_dependencies()])
    folder = Path.home() / ".cache" / "kvchat-tests"
    archive = folder / f"bare-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}.tar"
    if not archive.exists():
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = archive.with_name(f"{archive.stem}-{os.getpid()}.tar")
        fetch = f'chroot "$1" apt-get install -y --download-only --no-install-recommends {" ".join(_dependencies())}'
        command = ["mmdebstrap", "--quiet", "--variant=minbase", "--skip=cleanup/apt", f"--customize-hook={fetch}"]
        subprocess.run([*command, _SUITE, str(unfinished), _MIRROR], check=True, stdin=subprocess.DEVNULL, timeout=900)
        unfinished.replace(archive)
    return archive


class BareSystem:
    """The system, unpacked into a folder. It shares /tmp with the machine."""

    def __init__(self, root: Path) -> None:
        root.mkdir()
        subprocess.run(["tar", "-xf", str(_archive()), "-C", str(root), "--exclude=./dev/*"], check=True)
        (root / "etc/dpkg/dpkg.cfg.d/quick").write_text("force-unsafe-io\n")  # durability does not matter here
        self.root = root

    def command(self, *arguments: str | Path) -> list[str]:
        return ["unshare", "--mount", "sh", "-c", _ENTER, str(self.root), *map(str, arguments)]

    def run(self, *arguments: str | Path) -> str:
        """Run a command inside and return its output."""
        environment = {"DEBIAN_FRONTEND": "noninteractive", "LANG": "C.UTF-8"}
        done = subprocess.run(
            self.command(*arguments),
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout

    def files(self) -> set[str]:
        found = (path.relative_to(self.root).as_posix() for path in self.root.rglob("*"))
        return {name for name in found if not name.startswith(_BOOKKEEPING)}
