"""All entries of the lab by name: built-in ones, and registered ones with a sample."""

from collections.abc import Iterator, Mapping, Sequence

from dashboard.lab.patterns.pattern import Pattern
from dashboard.lab.patterns.registered import entry
from tasks import patterns as registry


class Catalogue(Mapping[str, Pattern]):
    """Entries by name, the built-in ones first. It reads the registry each time, because apps register when loaded.

    A registered pattern has an entry if it can make rows (`sample`). A built-in one with its code or its name replaces
    it.
    """

    def __init__(self, built_in: Sequence[Pattern]) -> None:
        self.built_in = {pattern.name: pattern for pattern in built_in}
        self.stood_for = {pattern.stands_for for pattern in built_in}

    def __getitem__(self, name: str) -> Pattern:
        if name in self.built_in:
            return self.built_in[name]
        if name not in self._registered():
            raise KeyError(name)
        return entry(registry.get(name))

    def __iter__(self) -> Iterator[str]:
        return iter([*self.built_in, *self._registered()])

    def __len__(self) -> int:
        return len(self.built_in) + len(self._registered())

    def _registered(self) -> list[str]:
        known = {*self.built_in, *self.stood_for}
        return [name for name in registry.names() if name not in known and registry.get(name).sample]
