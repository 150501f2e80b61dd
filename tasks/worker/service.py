"""What a service manager is told, in systemd's protocol: that we are ready, that we live, that we stop."""

import contextlib
import os
import socket
import time


class ServiceManager:
    """Speaks where NOTIFY_SOCKET says so; nobody listens otherwise, and nothing is said.

    With WATCHDOG_USEC it wants to hear of us that often, and starts us anew when we are silent: a supervisor that hangs
    renews no lease, so its workers would be taken for dead and work for nothing.
    """

    def __init__(self) -> None:
        # What handlers start must not speak for us.
        address = os.environ.pop("NOTIFY_SOCKET", "")
        self.address = f"\0{address[1:]}" if address.startswith("@") else address
        self.every_seconds = int(os.environ.pop("WATCHDOG_USEC", "0")) / 1e6 / 3
        self.due = 0.0

    def tell(self, state: str) -> None:
        """One state, such as READY=1. A manager that does not hear it will see for itself."""
        if self.address:
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
                manager.setblocking(False)
                manager.sendto(state.encode(), self.address)

    def tick(self) -> None:
        """That we live, as often as is wanted."""
        if self.every_seconds and time.monotonic() >= self.due:
            self.due = time.monotonic() + self.every_seconds
            self.tell("WATCHDOG=1")
