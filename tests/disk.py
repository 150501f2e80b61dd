"""A small disk that a test can fill and free: a tmpfs."""

import contextlib
import os
import resource
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

CHUNK = bytes(1 << 16)
# Without the right to mount, the server's files are limited to this size; its write-ahead log has files of 16 MB.
LARGEST_FILE = 16 << 20


@dataclass
class SmallDisk:
    """`folder` is on this disk; without the right to mount, an ordinary folder whose server's files are limited."""

    folder: Path
    is_mounted: bool

    def fill(self, server: psutil.Process) -> None:
        """Leave no room for one more page."""
        if not self.is_mounted:
            limit_files(server, LARGEST_FILE)
            return
        with self.ballast.open("wb", buffering=0) as ballast, contextlib.suppress(OSError):
            while ballast.write(CHUNK):
                pass

    def free(self, server: psutil.Process) -> None:
        if self.is_mounted:
            self.ballast.unlink()
        else:
            limit_files(server, resource.RLIM_INFINITY)

    @property
    def ballast(self) -> Path:
        return self.folder / "ballast"


def limit_files(server: psutil.Process, size: int) -> None:
    """Limit the file size of a server and each of its processes."""
    for process in [server, *server.children()]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.rlimit(psutil.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


@contextlib.contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[SmallDisk]:
    """A disk of this size at `folder`, which is created; removed at the end."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=0711", "rowlock-test", str(folder)]
    is_mounted = os.geteuid() == 0 and subprocess.run(mount, capture_output=True).returncode == 0
    try:
        yield SmallDisk(folder, is_mounted)
    finally:
        if is_mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)
