"""What a person may set about the journal: rate, samples, snapshots, disk and archive."""

from pydantic import BaseModel, ConfigDict, Field

_DAY_S = 86_400.0


class JournalSettings(BaseModel):
    """Settings of the failure journal; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    lines_per_s_max: int = Field(default=10, ge=1)
    """Lines of one operator within any second; what is above is counted."""
    merge_s: float = Field(default=300.0, gt=0)
    """Span of a merged row, and time after which a check counts as new."""
    full_share: float = Field(default=0.01, ge=0, le=1)
    """Share of failures whose calls are stored whole."""
    journal_prompts: bool = False
    """Whether token ids and texts of requests may be stored."""
    capture_bytes_max: int = Field(default=256 << 20, ge=0)
    """Bytes of a step's calls that are kept by reference until its verdict."""
    snapshot_bytes_max: int = Field(default=64 << 20, ge=0)
    """Bytes of the calls that are stored for one failure."""
    snapshot_calls_max: int = Field(default=16, ge=1, le=16)
    """Calls that are stored for one failure."""
    queue_bytes_max: int = Field(default=256 << 20, ge=0)
    """Bytes of snapshots that may wait for the disk; what is above is counted and dropped."""
    rotate_bytes: int = Field(default=64 << 20, ge=256)
    """Bytes after which a file is closed and the next begun."""
    rotate_s: float = Field(default=3600.0, gt=0)
    """Seconds after which a file is closed and the next begun."""
    keep_s: float = Field(default=7 * _DAY_S, gt=0)
    """Age at which a local file goes; with an archive only once that has given it back."""
    archive_url: str = ""
    """Where finished files are copied: s3://…, oss://…, file://…; empty: nowhere."""
    disk_bytes_max: int = Field(default=2 << 30, ge=1)
    """Bytes of local files; above it the oldest go first."""
    sweep_every_s: float = Field(default=60.0, gt=0)
    """Seconds between two looks for files that must go."""
