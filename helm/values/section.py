"""The base of every section of values, and the closed types that sections are made of."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel


class Section(BaseModel):
    """One section of values.yaml: camelCase keys, every field described, unknown keys refused."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        use_attribute_docstrings=True,
    )


DNS_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
DNS_SUBDOMAIN = rf"{DNS_LABEL}(\.{DNS_LABEL})*"
# Lengths stand in the pattern where a pattern can be a key's: helm places a key that is too long
# for a propertyNames.maxLength under another key of the values.
NAME_PART = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
LABEL_KEY = rf"({DNS_SUBDOMAIN}/)?{NAME_PART}"
PORT = r"(6553[0-5]|655[0-2][0-9]|65[0-4][0-9]{2}|6[0-4][0-9]{3}|[1-5][0-9]{4}|[1-9][0-9]{0,3})"
# No user and password before the host: addresses stand in ConfigMaps and command lines for all
# who may read those. No query and no fragment behind: what asks appends a path.
HOST = r"([A-Za-z0-9]([-A-Za-z0-9._]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])"
HTTP = rf"https?://{HOST}(:{PORT})?"
# What fsspec takes for a folder, and no shell takes apart; a name before @ is a container's.
_AUTHORITY = rf"([^\s'\"`$\\?#/:@]+@)?[^\s'\"`$\\?#/:@]+(:{PORT})?"
_PATH = r"[^\s'\"`$\\]"
STORE = rf"^([a-z][a-z0-9+.-]*://({_AUTHORITY}(/{_PATH}*)?|/{_PATH}+))?$"
_LABEL_KEY = rf"^{LABEL_KEY}$"
_LABEL_VALUE = r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"
_CPU = r"[0-9]+(\.[0-9]{1,3})?|[0-9]+m"
_BYTES = r"[0-9]+(\.[0-9]+)?(Ki|Mi|Gi|Ti|k|M|G|T)?"
_URL = rf"^({HTTP}(/[^\s?#]*)?)?$"
_SECRET_KEY = r"^([-_a-zA-Z0-9]|\.[-_a-zA-Z0-9])[-._a-zA-Z0-9]*$"
_OBJECT = rf"^{DNS_SUBDOMAIN}$"
_OPTIONAL_OBJECT = rf"^({DNS_SUBDOMAIN})?$"
FORMS = {
    rf"^{DNS_LABEL}$": "a DNS label",
    rf"^({DNS_LABEL})?$": 'a DNS label, or `""`',
    _OBJECT: "name of an object",
    _OPTIONAL_OBJECT: 'name of an object, or `""`',
    _LABEL_KEY: "key of a label",
    _LABEL_VALUE: "value of a label",
    _SECRET_KEY: "key of a Secret",
    rf"^({_CPU})$": "cores, such as `2` or `500m`, quoted",
    rf"^({_CPU})?$": 'cores, such as `2` or `500m`, quoted; or `""`',
    rf"^{_BYTES}$": "a size, such as `512Mi`",
    rf"^({_BYTES})?$": 'a size, such as `512Mi`, or `""`',
    STORE: 'a folder as fsspec names it, such as `s3://bucket/runs`, without password; or `""`',
    _URL: 'an address over HTTP without user, query or fragment, or `""`',
}
"""Pattern → what it asks for, in words."""

Name = Annotated[str, Field(pattern=rf"^{DNS_LABEL}$", max_length=63)]
OptionalName = Annotated[str, Field(pattern=rf"^({DNS_LABEL})?$", max_length=63)]
ObjectName = Annotated[str, Field(pattern=_OPTIONAL_OBJECT, max_length=253)]
"""The name of an object that exists already (Secret, claim, class), or "" for none."""
GivenObjectName = Annotated[str, Field(pattern=_OBJECT, max_length=253)]
"""The same where one must be named, as within a list."""
SecretKey = Annotated[str, Field(pattern=_SECRET_KEY, max_length=253)]
"""A key of a Secret, which becomes a file's name: neither `.` nor what begins with `..`."""
LabelKey = Annotated[str, Field(pattern=_LABEL_KEY, max_length=317)]
LabelValue = Annotated[str, Field(pattern=_LABEL_VALUE, max_length=63)]
Labels = dict[LabelKey, LabelValue]
Annotations = dict[LabelKey, str]
EnvName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=128)]
Port = Annotated[int, Field(ge=1, le=65535)]
Cpu = Annotated[str, Field(pattern=rf"^({_CPU})$")]
OptionalCpu = Annotated[str, Field(pattern=rf"^({_CPU})?$")]
Bytes = Annotated[str, Field(pattern=rf"^{_BYTES}$")]
OptionalBytes = Annotated[str, Field(pattern=rf"^({_BYTES})?$")]
OptionalUrl = Annotated[str, Field(pattern=_URL)]
OptionalStore = Annotated[str, Field(pattern=STORE, max_length=1024)]


class SecretRef(Section):
    """A key of a Secret that exists already; the chart never makes one."""

    name: ObjectName = ""
    """Name of the Secret; empty: none is used."""
    key: SecretKey = "token"
    """Key within the Secret."""
