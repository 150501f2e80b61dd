"""`python -m dashboard.embedded`: exit with status 1 and one line if this checkout's server runs.

`make clean` calls it. It needs only the standard library, because it may run before `.venv` exists.
"""

import sys
from pathlib import Path

from dashboard import embedded
from dashboard.embedded import ServerError, held


def main() -> None:
    home = embedded.home(Path(__file__).resolve().parents[2] / "var")
    if not home.exists():
        return
    try:
        with held(home):
            pass
    except ServerError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
