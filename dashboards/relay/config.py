"""The relay's configuration file: where it listens, and who is told how."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
)

from tocsin.core.errors import SpecError
from tocsin.core.yaml_text import NotYamlError, read_yaml

Language = Literal["en", "zh"]
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")]
HttpUrl = Annotated[str, Field(pattern=r"^https?://[^\s@]+$", max_length=2048)]
"""No user or password in it: those are secrets, and stand in files."""


def _no_url(value: Any) -> Any:
    """Somebody gave the secret itself."""
    if isinstance(value, str) and "://" in value:
        raise ValueError("found a URL, expected the path of a file that holds it")
    return value


def _usable(value: Path) -> Path:
    """A path that the system can be asked about, with `~` written out."""
    if "\0" in str(value):
        raise ValueError("found a path with a zero byte, expected one without")
    try:
        return value.expanduser()
    except RuntimeError as error:
        raise ValueError("found ~ of a user who is not known here, expected a path") from error


UsablePath = Annotated[Path, AfterValidator(_usable)]
SecretFile = Annotated[UsablePath, BeforeValidator(_no_url)]


class _Model(BaseModel):
    """Frozen; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Listen(_Model):
    """Where Alertmanager finds the relay; beyond loopback only with a token."""

    host: str = "127.0.0.1"
    port: int = Field(default=9465, ge=0, le=65535)


class _Receiver(_Model):
    """What all receivers share.

    Attributes:
        per_minute: messages in any 60 s; what is more becomes one summary line.
        attempts_max: tries of one message before it becomes a dead letter.
    """

    language: Language = "en"
    per_minute: int = Field(default=20, ge=1, le=600)
    attempts_max: int = Field(default=6, ge=1, le=20)
    timeout_s: float = Field(default=5.0, gt=0, le=60)


class WecomRobotConfig(_Receiver):
    """A WeCom group robot (the WeCom *app* is spoken to by Alertmanager itself)."""

    kind: Literal["wecom_robot"]
    url_file: SecretFile
    mention: tuple[str, ...] = ()
    """User ids that are mentioned in a P0 message."""


class DingTalkConfig(_Receiver):
    """A DingTalk group robot; `secret_file` if it asks for signed messages."""

    kind: Literal["dingtalk"]
    url_file: SecretFile
    secret_file: SecretFile | None = None
    mention_mobiles: tuple[str, ...] = ()
    mention_all: bool = False


class SlackConfig(_Receiver):
    """A Slack incoming webhook."""

    kind: Literal["slack"]
    url_file: SecretFile
    per_minute: int = Field(default=50, ge=1, le=600)


class PagerDutyConfig(_Receiver):
    """A PagerDuty service, Events API v2: one incident an alert, resolved with it."""

    kind: Literal["pagerduty"]
    routing_key_file: SecretFile
    url: HttpUrl = "https://events.pagerduty.com/v2/enqueue"
    per_minute: int = Field(default=110, ge=1, le=600)


class WebhookConfig(_Receiver):
    """Anything that takes JSON; one of `url` and `url_file`, the latter if the URL is a secret."""

    kind: Literal["webhook"]
    url: HttpUrl | None = None
    url_file: SecretFile | None = None
    token_file: SecretFile | None = None
    per_minute: int = Field(default=60, ge=1, le=600)

    @field_validator("url_file")
    @classmethod
    def _one_of_both(cls, value: Path | None, info: Any) -> Path | None:
        if (value is None) == (info.data.get("url") is None):
            raise ValueError("give exactly one of url and url_file")
        return value

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class AppriseConfig(_Receiver):
    """Whatever else the apprise library speaks: Feishu, Telegram, Teams, mail, …

    Attributes:
        urls_file: apprise URLs, one a line.
    """

    kind: Literal["apprise"]
    urls_file: SecretFile


ReceiverConfig = Annotated[
    WecomRobotConfig
    | DingTalkConfig
    | SlackConfig
    | PagerDutyConfig
    | WebhookConfig
    | AppriseConfig,
    Field(discriminator="kind"),
]


class RelayConfig(_Model):
    """The whole file.

    Attributes:
        state: folder for messages on their way, dead letters and debug reports.
        token_file: bearer token that Alertmanager must send.
        reproduce_wait_s: how long a P0 message waits for its reproduction; one that comes later is
            told in a second message.
        reports_max: debug reports that are kept.
    """

    listen: Listen = Listen()
    state: UsablePath
    token_file: SecretFile | None = None
    reproduce_wait_s: float = Field(default=2.0, ge=0, le=60)
    reports_max: int = Field(default=200, ge=1)
    receivers: dict[Name, ReceiverConfig] = Field(min_length=1)


def load_config(path: Path) -> RelayConfig:
    """Read a configuration; relative paths in it start at its folder.

    Raises:
        SpecError: one line that says what is wrong and where.
    """
    try:
        data = read_yaml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(
            f"{path}: cannot be read ({error}), expected a relay configuration"
        ) from error
    except NotYamlError as error:
        line = f":{error.line}" if error.line else ""
        raise SpecError(f"{path}{line}: {error.problem}, expected YAML") from error
    if not isinstance(data, dict):
        raise SpecError(f"{path}: found {type(data).__name__}, expected a mapping with receivers")
    try:
        config = RelayConfig.model_validate(data)
    except ValidationError as error:
        raise SpecError(f"{path}: {_one_line(error)}") from error
    if config.listen.host not in ("127.0.0.1", "::1", "localhost") and config.token_file is None:
        raise SpecError(
            f"{path}: listen.host is {config.listen.host} and there is no token_file; expected one "
            "where others can reach the relay: add it, or listen on 127.0.0.1"
        )
    return _below(config, path.resolve().parent)


def _below(config: RelayConfig, folder: Path) -> RelayConfig:
    """The same with absolute paths."""
    return config.model_copy(
        update={
            **_absolute(config, folder),
            "receivers": {
                name: receiver.model_copy(update=_absolute(receiver, folder))
                for name, receiver in config.receivers.items()
            },
        }
    )


def _absolute(model: BaseModel, folder: Path) -> dict[str, Path]:
    paths = {name: getattr(model, name) for name in type(model).model_fields}
    return {name: folder / value for name, value in paths.items() if isinstance(value, Path)}


def _one_line(error: ValidationError) -> str:
    """Where, what was wrong; what stood there is not repeated, since it may be a secret."""
    lines = []
    for one in error.errors(include_url=False, include_input=False)[:3]:
        place = ".".join(str(part) for part in one["loc"])
        message = one["msg"].removeprefix("Value error, ")
        lines.append(f"{place or 'file'}: {message[0].lower()}{message[1:]}")
    return "; ".join(lines)
