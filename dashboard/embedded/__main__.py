"""`python -m dashboard.embedded`: exit with status 1 and one line if this checkout's server runs.

`make clean` calls it. It needs only the standard library, because it may run before `.venv` exists.
"""

import sys
from pathlib import Path

from dashboard.embedded import ServerError, held, home

if __name__ == "__main__":
    folder = home(Path(__file__).resolve().parents[2] / "var")
    try:
        if folder.exists():
            with held(folder, "make clean"):
                pass
    except ServerError as error:
        sys.exit(str(error))
