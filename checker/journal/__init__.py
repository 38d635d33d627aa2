"""The failure journal: limited lines, merged rows, snapshots, rotation, archive, readers."""

from tocsin.checker.journal.files import (
    find_record,
    latest_record,
    records_in,
    snapshot_folder,
)
from tocsin.checker.journal.journal import RING_MAX, Journal
from tocsin.checker.journal.limiter import Admission
from tocsin.checker.journal.plain import plain_json
from tocsin.checker.journal.settings import JournalSettings

__all__ = [
    "RING_MAX",
    "Admission",
    "Journal",
    "JournalSettings",
    "find_record",
    "latest_record",
    "plain_json",
    "records_in",
    "snapshot_folder",
]
