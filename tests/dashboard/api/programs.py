"""Programs that read and act by the API, and whose every request is expected to go well unless they say otherwise."""

from typing import Any
from urllib.parse import urlencode

from tests.dashboard.api.callers import Caller


class Program(Caller):
    def read(self, path: str, **query: Any) -> Any:
        """The body of a 200."""
        found = self.get(f"{path}?{urlencode(query)}" if query else path)
        assert self.status == 200, self.response.content.decode()
        return found

    def do(self, path: str, body: object = None, *, version: int | None = None) -> Any:
        """The answer to a change."""
        found = self.post(path, body, version=version)
        assert self.status in (200, 201), self.response.content.decode()
        return found

    def asked(self, path: str, **query: Any) -> int:
        """The status of a question."""
        self.get(f"{path}?{urlencode(query)}" if query else path)
        return int(self.status)

    def tried(self, path: str, body: object = None, *, version: int | None = None) -> int:
        """The status of a change."""
        self.post(path, body, version=version)
        return int(self.status)
