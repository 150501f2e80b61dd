"""The tables of the queue, of the locks and of what operators did. The contract fixes each column's meaning."""

from tasks.models.lock import CommandRun as CommandRun
from tasks.models.lock import ExpectedCommand as ExpectedCommand
from tasks.models.lock import Lock as Lock
from tasks.models.lock import LockWaiter as LockWaiter
from tasks.models.run import BulkRun as BulkRun
from tasks.models.run import Intervention as Intervention
from tasks.models.run import SubmittedForm as SubmittedForm
from tasks.models.task import FINISHED as FINISHED
from tasks.models.task import HIGHEST_VERSION as HIGHEST_VERSION
from tasks.models.task import HOLDS_ITS_KEY as HOLDS_ITS_KEY
from tasks.models.task import ONE_PER_KEY as ONE_PER_KEY
from tasks.models.task import Attempt as Attempt
from tasks.models.task import Queue as Queue
from tasks.models.task import RefusedWrite as RefusedWrite
from tasks.models.task import Task as Task
from tasks.models.task import TaskQuerySet as TaskQuerySet
from tasks.models.task import TaskStatus as TaskStatus
from tasks.models.telling import AttemptLog as AttemptLog
from tasks.models.telling import Progress as Progress
from tasks.models.worker import Epoch as Epoch
from tasks.models.worker import RecoveryFailure as RecoveryFailure
from tasks.models.worker import Throughput as Throughput
from tasks.models.worker import ThroughputSlot as ThroughputSlot
from tasks.models.worker import ThroughputTotal as ThroughputTotal
from tasks.models.worker import Worker as Worker
