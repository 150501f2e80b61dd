"""One terminal for several programs: each line starts with its program's name."""

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import IO

from dashboard.processes import bound

COLOURS = {"up": 1, "postgres": 34, "setup": 35, "worker": 32, "web": 36, "demo": 33}
NAME_WIDTH = max(map(len, COLOURS))
LAST_WORDS_SECONDS = 5.0


class Console:
    """Writes lines to `stream`, with coloured names on a terminal (unless NO_COLOR is set: https://no-color.org)."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._coloured = stream.isatty() and not os.environ.get("NO_COLOR")
        self._lock = threading.Lock()  # each program's output is copied by a thread

    def line(self, name: str, text: str) -> None:
        """Write one line of the program `name`."""
        prefix = f"{name:<{NAME_WIDTH}} |"
        if self._coloured:
            prefix = f"\x1b[{COLOURS.get(name, 0)}m{prefix}\x1b[0m"
        self.raw(f"{prefix} {text}")

    def raw(self, text: str) -> None:
        """Write a line without a name, which stands out among the others.

        If the reader is gone (`| head`, a closed terminal), discard further output and stop everything.
        """
        try:
            with self._lock:
                self._stream.write(f"{text}\n")
                self._stream.flush()
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)
            signal.raise_signal(signal.SIGHUP)

    @asynccontextmanager
    async def pipe(self, name: str) -> AsyncIterator[int]:
        """A descriptor for the output of program `name`; at the end waits briefly for its last output.

        asyncio's own pipes do not serve: some versions wait until every process that inherited the pipe ends, not only
        the program (https://github.com/python/cpython/issues/119710).
        """
        reading, writing = os.pipe()
        copying = threading.Thread(target=self._copy, args=(name, reading), daemon=True)
        copying.start()
        try:
            yield writing
        finally:
            os.close(writing)
            await asyncio.to_thread(copying.join, LAST_WORDS_SECONDS)

    def _copy(self, name: str, descriptor: int) -> None:
        with os.fdopen(descriptor, "rb") as output:
            for line in output:
                self.line(name, line.removesuffix(b"\n").decode(errors="replace"))


BACKOFF_SECONDS = (1, 2, 5, 10, 30)
STABLE_SECONDS = 60.0  # after running this long, a program's restart delay is reset
ECHO_SECONDS = 0.5  # make repeats SIGTERM even if the whole group got it; a person is slower
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Program:
    """A program to run. `name`: prefix of its lines; `environment`: variables added to ours."""

    name: str
    argv: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)


class Supervisor:
    """Runs programs, each in a process group of its own, until a signal asks it to stop.

    The first signal asks every program to end (SIGTERM). A second one, or `patience_seconds`, ends them with SIGKILL.
    """

    def __init__(self, console: Console, *, patience_seconds: float) -> None:
        self.console = console
        self.patience_seconds = patience_seconds
        self.stopping = asyncio.Event()
        self.hurried_by: signal.Signals | None = None
        self.at_stop: Callable[[], None] | None = None
        self._asked_at = 0.0
        self._running: set[asyncio.subprocess.Process] = set()

    def listen(self) -> None:
        """Handle the signals that ask to stop. Programs are in other process groups, so Ctrl-C reaches only us."""
        for number in STOP_SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, self.on_signal, number)

    def on_signal(self, number: signal.Signals) -> None:
        """Stop at the first signal, kill at the second."""
        now = asyncio.get_running_loop().time()
        if not self.stopping.is_set():
            self._asked_at = now
            self.stopping.set()
            if self.at_stop:
                self.at_stop()
            self.say(f"{number.name}: stopping; once more to stop at once")
            self.signal_all(signal.SIGTERM)
        elif now - self._asked_at > ECHO_SECONDS:
            self.hurried_by = number
            self.say(f"{number.name} again: killing what still runs")
            self.signal_all(signal.SIGKILL)

    def signal_all(self, number: signal.Signals) -> None:
        """Send SIGTERM only to the programs, which stop their own children, but SIGKILL to their whole groups."""
        for process in self._running:
            with contextlib.suppress(ProcessLookupError):
                if number == signal.SIGKILL:
                    os.killpg(process.pid, number)
                else:
                    process.send_signal(number)

    def say(self, text: str) -> None:
        self.console.line("up", text)

    async def run(self, program: Program, *, stdout: IO[bytes] | None = None) -> int:
        """Run a program to its end. Returns its exit status, negative for a signal.

        Args:
            stdout: receives its standard output if given; all other output goes to the console.
        """
        async with self.console.pipe(program.name) as output:
            process = await asyncio.create_subprocess_exec(
                *bound(program.argv),
                env={**os.environ, "PYTHONUNBUFFERED": "1", **program.environment},
                process_group=0,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=stdout or output,
                stderr=output,
            )
            self._running.add(process)
            if self.stopping.is_set():
                process.terminate()
            status = await process.wait()
            self._running.discard(process)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # the rest of its group
        return status

    async def keep(self, program: Program, *, until_done: bool = False) -> None:
        """Restart a program whenever it ends, until we stop; with `until_done` only until it ends with status 0."""

        async def once() -> str:
            status = await self.run(program)
            return "" if until_done and status == 0 else describe(status)

        await self.keep_up(program.name, once)

    async def keep_up(self, name: str, once: Callable[[], Awaitable[str]]) -> None:
        """Repeat `once`, which runs the program and returns how it ended, with growing delays.

        An empty text means that it is done for good.
        """
        loop, failures = asyncio.get_running_loop(), 0
        while True:
            began = loop.time()
            try:
                ending = await once()
            except OSError as error:  # out of processes or memory
                ending = str(error)
            if self.stopping.is_set() or not ending:
                return
            failures = 0 if loop.time() - began > STABLE_SECONDS else failures
            delay = BACKOFF_SECONDS[min(failures, len(BACKOFF_SECONDS) - 1)]
            failures += 1
            self.say(f"{name} ended ({ending}); starting it again in {delay} s")
            if await self.stops_within(delay):
                return

    async def stops_within(self, seconds: float) -> bool:
        """Wait, but no longer than until a stop is requested; returns True if it was."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.stopping.wait(), seconds)
        return self.stopping.is_set()

    async def wind_down(self, tasks: Iterable[asyncio.Task[None]]) -> None:
        """Wait for the programs behind `tasks` after a stop request, and kill those that take too long."""
        _, late = await asyncio.wait(tasks, timeout=self.patience_seconds)
        if late:
            self.say(f"still running after {self.patience_seconds:g} s: killing it")
            self.signal_all(signal.SIGKILL)
            await asyncio.wait(late)


def describe(status: int) -> str:
    return f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
