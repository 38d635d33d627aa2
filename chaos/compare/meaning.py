"""What it means that B is worse than A, in words and limits; imports nothing, for help texts."""

TOLERANCE = 0.25
AVAILABILITY_TOLERANCE = 0.01
FLOOR_MS = 50.0
"""Below it two times are told apart by nobody: a tick of the run's own loop takes longer."""

MEANING = (
    "B is worse than A when its run ends worse (pass, unknown or vacuous, invalid, aborted, "
    "violated, not healed); when a property that held in A does not hold in B; when it has more "
    "silent corruptions, lost requests, duplicated tokens or false alarms; when its availability "
    f"is more than {100 * AVAILABILITY_TOLERANCE:g} % lower; when a fault fired, was detected or "
    "was healed in a smaller share; or when a time grew by more than the tolerance: time to "
    f"detect (p99) and recovery of a fault, by {FLOOR_MS:g} ms besides; first token and whole "
    "answer of the same requests, by the lower end of the 95 % interval."
)
