"""`make bench`: every benchmark in this folder, or those that are named, one after the other."""

import importlib
import pkgutil
import sys

from tests import benchmarks

HELPERS = {"__main__", "stage"}


def main(names: list[str]) -> None:
    known = [module.name for module in pkgutil.iter_modules(benchmarks.__path__) if module.name not in HELPERS]
    for name in names or known:
        if name not in known:
            raise SystemExit(f"There is no benchmark {name!r}: choose from {', '.join(known)}.")
        print(f"\n{name}", flush=True)
        importlib.import_module(f"tests.benchmarks.{name}").main()


if __name__ == "__main__":
    main(sys.argv[1:])
