"""The durable memory of one gateway: one SQLite file, one writer, group commit."""

from gatepost.journal.database import Database, memory
from gatepost.journal.tx import Tx
from gatepost.journal.writer import Outcome, Participant, Writer

__all__ = ["Database", "Outcome", "Participant", "Tx", "Writer", "memory"]
