"""Who a backend is, from its `application_name`: worker, command, web request, lab run, or somebody else's program."""

from dataclasses import dataclass

PREFIX = "rowlock"
KINDS = {"worker", "supervisor", "web", "cmd", "lab", "demo", "up", "lock"}


@dataclass(frozen=True)
class Identity:
    """`kind` is one of KINDS, or `other`; `name` is a worker's id, a command's name, or the application name itself.

    Any client may call itself anything: this is a label for people, never a proof.
    """

    kind: str
    name: str

    def __str__(self) -> str:
        return {
            "web": f"web {self.name}".strip(),
            "worker": f"worker {self.name}",
            "supervisor": f"supervisor, pid {self.name}",
            "cmd": f"command {self.name}",
            "lab": f"lab run {self.name}",
            "demo": f"demo {self.name}",
            "lock": f"named lock {self.name}",
        }.get(self.kind, self.name or self.kind)


def identify(application_name: str) -> Identity:
    """
    >>> str(identify("rowlock:worker:7f3a"))
    'worker 7f3a'
    >>> identify("psql")
    Identity(kind='other', name='psql')
    """
    prefix, _, rest = application_name.partition(":")
    kind, _, name = rest.partition(":")
    if prefix == PREFIX and kind in KINDS:
        return Identity(kind, name)
    return Identity("other", application_name)
