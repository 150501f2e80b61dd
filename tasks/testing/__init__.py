"""For adopters' tests: read enqueued tasks, and run them in the test's own process and transaction.

    def test_signing_up_sends_one_mail(self):
        sign_up("anna@example.test")
        testing.assert_enqueued(send_mail, args=["anna@example.test"], count=1)
        testing.run_due()
        self.assertEqual(len(mail.outbox), 1)

Claims, attempts, retries, signals and stored errors work as in a worker, inside Django's TestCase too. There
`transaction.on_commit` waits for a commit that never comes; the blocks of `captured_tasks` and `eager(on_commit=True)`
call what waits at their end.
"""

from tasks.testing.clock import advance as advance
from tasks.testing.leftovers import LeftBehind as LeftBehind
from tasks.testing.leftovers import NothingLeftBehind as NothingLeftBehind
from tasks.testing.running import assert_enqueued as assert_enqueued
from tasks.testing.running import captured_tasks as captured_tasks
from tasks.testing.running import eager as eager
from tasks.testing.running import enqueued as enqueued
from tasks.testing.running import failing as failing
from tasks.testing.running import run_all as run_all
from tasks.testing.running import run_due as run_due
