"""The signatures of flash-attn's public functions, read from its sdist without importing it.

flash-attn cannot be imported where there is no CUDA, so the adapter is held to a table of facts:
names, order and defaults of parameters. `python -m tocsin.checker.attach.flash_attn_table SDIST`
writes it anew, where SDIST comes from
`FLASH_ATTENTION_SKIP_CUDA_BUILD=TRUE pip download --no-deps --no-binary :all: flash-attn==VERSION`.
"""

import ast
import hashlib
import json
import sys
import tarfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from tocsin.core.errors import SpecError

TABLE: Final = Path(__file__).with_name("flash_attn_signatures.json")
FUNCTIONS: Final = (
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
)
"""The public functions that the adapter guards."""

Signature = tuple[tuple[str, str | None], ...]
"""Parameters in order: name and default as Python writes it, None where there is none."""

_INTERFACE = "flash_attn/flash_attn_interface.py"


def signatures_of(source: str) -> dict[str, Signature]:
    """The signatures of the guarded functions in the text of `flash_attn_interface.py`.

    Raises:
        SpecError: one of them is not there, or takes parameters that the table cannot say.
    """
    found: dict[str, Signature] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.name in FUNCTIONS:
            found[node.name] = _signature(node)
    missing = [name for name in FUNCTIONS if name not in found]
    if missing:
        raise SpecError(
            f"flash-attn: found no {', '.join(missing)} in {_INTERFACE}, expected the functions "
            "that the adapter guards; adapt flash_attn.py to this version"
        )
    return {name: found[name] for name in FUNCTIONS}


def _signature(node: ast.FunctionDef) -> Signature:
    given = node.args
    if given.posonlyargs or given.kwonlyargs or given.vararg or given.kwarg:
        raise SpecError(
            f"flash-attn: {node.name} has other than plain parameters, expected none; "
            "extend flash_attn_table.py"
        )
    names = [argument.arg for argument in given.args]
    plain: list[str | None] = [None] * (len(names) - len(given.defaults))
    # Through a value and back: (-1,-1) and (-1, -1) are one default.
    defaults = plain + [repr(ast.literal_eval(default)) for default in given.defaults]
    return tuple(zip(names, defaults, strict=True))


def read_sdist(path: Path) -> dict[str, Any]:
    """The table of one sdist.

    Raises:
        SpecError: it is no sdist of flash-attn.
    """
    content = path.read_bytes()
    with tarfile.open(path) as archive:
        members = {name.partition("/")[2]: name for name in archive.getnames()}
        if not {"PKG-INFO", _INTERFACE, "LICENSE"} <= members.keys():
            raise SpecError(
                f"flash-attn: {path.name} holds no PKG-INFO, LICENSE and {_INTERFACE}, expected a "
                "source distribution; download one with pip download --no-binary :all:"
            )
        text = {name: _text(archive, members[name]) for name in ("PKG-INFO", _INTERFACE, "LICENSE")}
    version = next(
        line.partition(": ")[2]
        for line in text["PKG-INFO"].splitlines()
        if line.startswith("Version: ")
    )
    return {
        "package": "flash-attn",
        "version": version,
        "sdist_sha256": hashlib.sha256(content).hexdigest(),
        "source": _INTERFACE,
        "licence": f"{text['LICENSE'].splitlines()[0].strip()} (the package's own)",
        "note": "Signatures only, as facts: names, order and defaults. No code was copied.",
        "functions": {
            name: ", ".join(_written(*parameter) for parameter in signature)
            for name, signature in signatures_of(text[_INTERFACE]).items()
        },
    }


def _written(name: str, default: str | None) -> str:
    return name if default is None else f"{name}={default}"


def _text(archive: tarfile.TarFile, member: str) -> str:
    handle = archive.extractfile(member)
    return handle.read().decode() if handle is not None else ""


@cache
def table() -> Mapping[str, Any]:
    """The committed table."""
    return dict(json.loads(TABLE.read_text()))


@cache
def signatures() -> Mapping[str, Signature]:
    """The committed signatures, by function."""
    written = table()["functions"]
    return signatures_of("\n".join(f"def {name}({written[name]}): ..." for name in written))


def main(arguments: list[str]) -> int:
    """Write the table from the sdist that is named."""
    if len(arguments) != 1:
        print("usage: python -m tocsin.checker.attach.flash_attn_table SDIST", file=sys.stderr)
        return 64
    found = read_sdist(Path(arguments[0]))
    TABLE.write_text(json.dumps(found, indent=2) + "\n")
    print(f"{TABLE.name}: {len(found['functions'])} functions of flash-attn {found['version']}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
