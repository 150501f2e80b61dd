"""One part by itself, printed and not kept, without peers: what one runs while working on the speed of something."""

from collections.abc import Sequence


def main(part: str, words: Sequence[str], names: Sequence[str]) -> None:
    """`words` are plain numbers, given to the options `names` in this order."""
    from tests.benchmarks.__main__ import main as bench

    options = [word for pair in zip(names, words, strict=False) for word in pair]
    bench([part, *options, "--peers", "none", "--print"])
