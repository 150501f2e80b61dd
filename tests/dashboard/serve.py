"""A process that runs a home's embedded server until TERM; prints its process id and its URL, a line each."""

import signal
import sys
from pathlib import Path

from dashboard.embedded import ServerError
from dashboard.embedded.server import running


def main(home: Path) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        with running(home, runs="the tests' server", settings={"fsync": "off"}) as server:
            assert server.process
            print(server.process.pid, server.url, sep="\n", flush=True)
            signal.pause()
    except ServerError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
