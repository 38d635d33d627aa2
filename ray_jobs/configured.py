"""The checker's settings of a replica: as its options say, or as a user_config has it."""

from typing import Any

from pydantic import ValidationError

from tocsin.checker.journal import JournalSettings
from tocsin.checker.runtime import checks_with
from tocsin.checker.settings import CheckerSettings
from tocsin.core.errors import SpecError
from tocsin.ray_jobs.options import ServeOptions
from tocsin.ray_jobs.serve_arguments import first_complaint


def settings_of(options: ServeOptions) -> CheckerSettings:
    """The settings of an application that was given no user_config."""
    return CheckerSettings(
        profile=options.profile,
        cooldown_s=options.breaker_cooldown_s,
        journal=JournalSettings(
            archive_url=options.archive_url, journal_prompts=options.journal_prompts
        ),
    )


def parse_settings(data: Any, where: str = "user_config") -> CheckerSettings:
    """The settings of a user_config.

    Raises:
        SpecError: something in it is not known or out of range; one line that says what.
    """
    try:
        settings = CheckerSettings.model_validate(data)
        checks_with(settings.thresholds)
    except ValidationError as error:
        raise SpecError(first_complaint(error, where, CheckerSettings)) from None
    except ValueError as error:
        raise SpecError(f"{where}.{' '.join(str(error).split())}; correct it") from None
    return settings


def told(settings: CheckerSettings) -> dict[str, Any]:
    """What anybody may read: without the archive, whose address may hold a password."""
    return settings.model_dump(mode="json", exclude={"journal": {"archive_url"}})
