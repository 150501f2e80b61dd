"""The process beside the workers, which does a duty of another app."""

import os
import signal
import threading

from tasks.worker.companion import Companion
from tests.tasks.worker_app import duty


def test_one_that_is_stopped_does_not_hold_up_the_end_of_its_supervisor():
    """It would hear no SIGTERM, like one that has just been forked."""
    one = Companion(duty.__name__)
    lifeline, other_end = os.pipe()
    one.pid = os.fork()
    if one.pid == 0:
        os._exit(one.main(lambda: None, lifeline))
    os.kill(one.pid, signal.SIGSTOP)
    os.waitpid(one.pid, os.WUNTRACED)
    ending = threading.Thread(target=one.end, daemon=True)
    ending.start()
    ending.join(30)
    assert not ending.is_alive()
    assert one.pid == 0
    os.close(lifeline)
    os.close(other_end)
