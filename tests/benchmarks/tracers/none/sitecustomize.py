"""As if OpenTelemetry was not installed."""

import sys


class Refusal:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "opentelemetry":
            raise ModuleNotFoundError(name)


sys.meta_path.insert(0, Refusal())
