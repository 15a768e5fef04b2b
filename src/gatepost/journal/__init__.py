"""The durable memory of one gateway: one SQLite file, one writer, group commit."""

from gatepost.journal.database import Database, open_memory_journal
from gatepost.journal.transaction import Tx
from gatepost.journal.writer import JobOutcome, Participant, Writer

__all__ = ["Database", "JobOutcome", "Participant", "Tx", "Writer", "open_memory_journal"]
