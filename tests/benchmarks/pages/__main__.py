"""`python -m tests.benchmarks.pages`."""

import sys

from tests.benchmarks.pages import main

if __name__ == "__main__":
    main(sys.argv[1:])
